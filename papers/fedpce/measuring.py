"""Measure one method: collaborative training, client training of those held out, and a map of the clients."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Self

from fedatlas.adapting import Adapted, Adapter
from fedatlas.atlas import cluster_accuracy, run_atlas
from fedatlas.config import Config
from fedatlas.data import Federation
from fedatlas.runs import Run
from papers.kept_results import write_result
from papers.tables import UNFINISHED, Numbers, Task, late, train_in_time

NORMS = {"first": "bn1", "12th": "layer3.0.bn2", "last": "head_norm"}
"""The norm layers of Figure 1."""


class OutOfTimeError(Exception):
    """The minutes are used up; what is done is kept."""


@dataclass(eq=False)
class Narrator:
    """Says a line for each evaluated round."""

    task: Task
    rounds: int
    began: float = 0.0

    def __enter__(self) -> Self:
        self.began = time.perf_counter()
        return self

    def __exit__(self, *details: object) -> None:
        return None

    def start_from(self, round: int) -> None:
        """Say where it goes on."""
        say(self.task, f"from round {round} of {self.rounds}")

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Say the round."""
        if metrics:
            took = time.perf_counter() - self.began
            say(self.task, f"round {round} of {self.rounds}, {took:.0f} s, shared model {metrics['accuracy']:.1%}")


def say(task: Task, words: str) -> None:
    """Print a line of progress."""
    print(f"[{task.name}, fold {task.seed}] {words}", file=sys.stderr, flush=True)


def personalised(task: Task) -> Numbers:
    """Return the figures of one method on one fold: collaborative training, then each held-out client on its own."""
    config = configured(task)
    federation = config.federation()
    run = collaborated(task, config, federation)
    wanted = run.resolved["training"]["rounds"]
    numbers = collaborative_figures(run)
    if len(run.rounds) < wanted:
        # An unfinished training stays marked as such, and can be continued.
        numbers[UNFINISHED] = f"round {len(run.rounds)} of {wanted}"
        if not task.options.extra["finish"]:
            return numbers
    try:
        numbers |= adapted_figures(task, run, federation)
    except OutOfTimeError:
        return {**numbers, UNFINISHED: "before client training was done"}
    return numbers


def configured(task: Task) -> Config:
    """Return the config of a task: its sections, the fold and the folder of the data."""
    sections, place = task.settings["sections"], task.options.data_folder
    data = {**sections["data"], "fold": task.seed, **({} if place is None else {"folder": place})}
    return Config.load(None, (), **{**sections, "data": data})


def collaborated(task: Task, config: Config, federation: Federation) -> Run:
    """Train, or go on with, the run of a task; it may end early where the time is up."""
    folder = task.folder / "run"
    if task.options.extra["finish"] and (folder / "checkpoints/manifest.json").exists():
        return Run(folder)
    words = Narrator(task, config.plan().rounds)
    return train_in_time(config, federation, config.algorithm(), task.options, folder=folder, progress=words)


def collaborative_figures(run: Run) -> Numbers:
    """Return accuracies of clients' own models (``col``) and of the averaged one (``shared``), and what they cost."""
    own = [entry["own"] for entry in run.rounds if "own" in entry]
    if not own:
        return {}
    best = max(own, key=lambda entry: entry["accuracy"])
    training = run.resolved["training"]
    images = training["steps"] * training["batch_size"] * sum(len(entry["answered"]) for entry in run.rounds)
    return {
        "best": best["accuracy"],
        "col_best": best["accuracy"],
        "col_last": own[-1]["accuracy"],
        **{f"col_{domain}": accuracy for domain, accuracy in best.get("domains", {}).items()},
        **{f"col_last_{domain}": accuracy for domain, accuracy in own[-1].get("domains", {}).items()},
        "shared_last": run.last["accuracy"],
        **{f"shared_{domain}": accuracy for domain, accuracy in run.last.get("domains", {}).items()},
        "parameters": run.resolved["model"]["num_parameters"],
        "rounds": len(run.rounds),
        "images": images,
        "seconds": run.seconds,
        "machine": run.resolved["machine"]["name"],
        "curve": [[e["round"], e["own"]["accuracy"], e["evaluation"]["accuracy"]] for e in run.rounds if "own" in e],
    }


def adapted_figures(task: Task, run: Run, federation: Federation) -> Numbers:
    """Return how the held-out clients do, before and after tuning; with few images too, where asked for."""
    adapter = Adapter(run, data=federation, device=task.options.device)
    plan = {"tune": "personal", "compare": False, **task.settings["adapt"]}
    every = max(1, plan["rounds"] // 10)
    rounds = len(run.rounds)
    kept = task.folder / "adapted.json"
    done = _kept(kept, rounds)
    if done is None:
        _check_time(task)
        say(task, f"client training of {len(adapter.held_out)} clients")
        results = adapter.adapt_all(**plan, evaluate_every=every)
        places = _atlases(task, run, results)
        done = {"round": rounds, "clients": [one.describe() for one in results], "groups": places}
        write_result(kept, done)
    numbers = {**client_figures(done["clients"]), **done["groups"]}
    if "few" not in task.settings:
        return numbers
    kept = task.folder / "few.json"
    done = _kept(kept, rounds)
    if done is None:
        _check_time(task)
        say(task, f"client training with {task.settings['few']} images")
        done = {"round": rounds, "few": few_images(adapter, task.settings["few"], plan)}
        write_result(kept, done)
    return {**numbers, "few": done["few"]}


def client_figures(clients: Sequence[Mapping[str, Any]]) -> Numbers:
    """Return accuracies over new clients, weighted by test images, and their means by domain without weights."""
    curves = [{0: one["accuracy_before"], **{int(k): v for k, v in one["curve"].items()}} for one in clients]
    for one, curve in zip(clients, curves, strict=True):
        curve[max(curve) + 1] = one["accuracy_after"]
    sizes = [one["num_tested"] for one in clients]

    def overall(turn: int) -> float:
        return float(sum(curve[turn] * size for curve, size in zip(curves, sizes, strict=True)) / sum(sizes))

    last = max(curves[0])
    # Before the first step is not part of client training, except where there is none.
    best = max((turn for turn in curves[0] if turn or last == 1), key=overall)
    domains: dict[str, list[dict[int, float]]] = {}
    for one, curve in zip(clients, curves, strict=True):
        domains.setdefault(one["domain"] or "all", []).append(curve)
    return {
        "cl_before": overall(0),
        "cl_best": overall(best),
        "cl_last": overall(last),
        **{f"cl_{domain}": mean(curve[best] for curve in own) for domain, own in domains.items()},
        **{f"cl_last_{domain}": mean(curve[last] for curve in own) for domain, own in domains.items()},
        **{f"cl_before_{domain}": mean(curve[0] for curve in own) for domain, own in domains.items()},
        "tuned": clients[0]["num_tuned"],
        "tuning_seconds": mean(one["seconds"] for one in clients),
    }


def few_images(adapter: Adapter, counts: Sequence[int], plan: Mapping[str, Any]) -> list[Numbers]:
    """Return, for each number of images, the accuracies of the held-out clients; a client with fewer has all it has."""
    held_out = [client for client in adapter.federation if client.held_out]
    wanted = [(client.name, min(count, len(client.train)), count) for count in counts for client in held_out]
    results = adapter.adapt_all([name for name, _, _ in wanted], examples=[own for _, own, _ in wanted], **plan)
    found = []
    for count in counts:
        own = [one for one, (_, _, asked) in zip(results, wanted, strict=True) if asked == count]
        tested = sum(one.after.num_examples for one in own)
        by_domain: dict[str, list[float]] = {}
        for one in own:
            by_domain.setdefault(one.domain or "all", []).append(one.after.accuracy)
        found.append(
            {
                "images": count,
                "accuracy": sum(one.after.accuracy * one.after.num_examples for one in own) / tested,
                "before": sum(one.before.accuracy * one.before.num_examples for one in own) / tested,
                **{domain: mean(values) for domain, values in by_domain.items()},
            }
        )
    return found


def _atlases(task: Task, run: Run, results: Sequence[Adapted]) -> Numbers:
    """Keep the atlas of what clients hold of their own, and return how well its groups are the known kinds."""
    if not results[0].num_tuned:
        return {}
    layers: dict[str, list[str] | None] = {"": None}
    if run.name == "fedbn":
        layers |= {f"-{title}": [f"{path}.weight", f"{path}.bias"] for title, path in NORMS.items()}
    found: Numbers = {}
    for title, parameters in layers.items():
        atlas = run_atlas(run, parameters=parameters, adapted=results)
        atlas.save(atlas_file(task.options.out, task.folder.name, title))
        labels = atlas.groups(len({*atlas.domains}))
        found[f"groups{title}"] = cluster_accuracy(labels, list(atlas.domains))
    return found


def atlas_file(out: Path, name: str, layer: str = "") -> Path:
    """Return the file of a variant's atlas; ``name`` is its key and the fold."""
    path = out / "atlases" / f"{name}{layer}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _check_time(task: Task) -> None:
    if late(task.options):
        raise OutOfTimeError


def _kept(path: Path, rounds: int) -> dict[str, Any] | None:
    """Return what was kept of a training of so many rounds; None where there is nothing, or it is of fewer."""
    content: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return content if content.get("round") == rounds else None

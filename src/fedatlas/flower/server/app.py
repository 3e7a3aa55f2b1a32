"""The server's side: a ServerApp that plays the simulator's rounds over Flower's grid, and writes a usual run folder.

The folder is on the server. A run that was killed goes on from its last checkpoint when it is started again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedatlas.atlas.sources import kept_atlas
from fedatlas.config.config import Config
from fedatlas.errors import FedatlasError, UsageError, unknown_name
from fedatlas.flower.node.request import CHECK, atlas_form, load_config
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.protocol.expectations import expected_replies
from fedatlas.flower.server.atlas import NetworkAtlas
from fedatlas.flower.server.check import check_clients
from fedatlas.flower.server.exchange import Exchange, NetworkSettings
from fedatlas.flower.server.gathering import gather
from fedatlas.flower.server.newcomers import adapt_newcomers
from fedatlas.flower.server.safety import capped_weights
from fedatlas.flower.server.transport import FlowerClients
from fedatlas.parts.types import Memory
from fedatlas.runs.run import ATLAS, Run
from fedatlas.runs.schema import RESOLVED
from fedatlas.runs.tensor_files import memory_from_bytes, memory_to_bytes
from fedatlas.runs.writer import RunWriter, machine, versions
from fedatlas.seeds import repeatable
from fedatlas.training.loop import TrainingLoop
from fedatlas.training.model import make_model
from fedatlas.training.progress import scores_line
from fedatlas.training.train import resolve

NETWORK, INTRODUCTIONS, BEFORE = "flower", "introductions.safetensors", "before.json"


def make_server_app(config: Path | str) -> ServerApp:
    """Return the ServerApp of a run, from its config file.

    ``flwr run --run-config`` takes ``folder``, the run's folder; ``settings``, changes of the config
    (``section.key=value``, separated by ``;``); and ``task``: ``train``; later ``adapt`` for clients that joined after
    the training; or ``check``, which looks at all clients' data and trains nothing.

    >>> app = make_server_app("run.toml")  # doctest: +SKIP
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder = Path(str(context.run_config.get("folder", "runs/flower"))).expanduser()
        try:
            settings = load_config(config, context)
            settings.check_code()
            TASKS[_task(context)](settings, grid, folder)
        except FedatlasError as error:
            print(f"error: {error}", flush=True)
            if error.code == "against-policy":  # the line says it all; Flower prints where it was raised after it
                raise error.with_traceback(None) from None
            raise
        print(f"run: {folder}", flush=True)

    return app


def _task(context: Context) -> str:
    task = str(context.run_config.get("task", "train"))
    if task not in TASKS:
        raise unknown_name("task", task, TASKS)
    return task


def serve(config: Config, grid: Grid, folder: Path) -> Run:
    """Train by a config over a grid, and go on with the run in the folder if there is one."""
    settings = NetworkSettings(**config.values[NETWORK])
    exchange = Exchange(grid, settings, lambda line: print(line, flush=True))
    earlier = _read_earlier(folder)
    if earlier:
        members, form, identity = _earlier_members(earlier)
        _gather_again(exchange, members)
    else:
        members, form = gather(exchange, settings)
        identity = secrets.token_hex(8)
    print(f"{len(members)} clients: {', '.join(member.name for member in members)}", flush=True)
    atlas = None
    if (make := config.atlas_settings()) is not None:
        maker = NetworkAtlas(exchange, members, form, make, {"run": identity})
        with repeatable(torch.device("cpu")):
            atlas = kept_atlas(folder / ATLAS, maker.make, resume=earlier is not None)
    federation = form.stand_in(members)
    algorithm = capped_weights(config.algorithm(atlas), settings.most_weight)
    choices = config.run_settings(federation.data)
    plan, seeds = choices.plan, choices.seeds
    network = make_model(choices.model, choices.model_options, federation, algorithm, seeds.model)
    with repeatable(torch.device("cpu")):
        expected = expected_replies(algorithm, network, form, plan.metrics)
        clients = FlowerClients(
            exchange,
            algorithm,
            network,
            members,
            expected,
            about={"run": identity, "atlas": atlas_form(atlas), **form.values()},
        )
        resolved = resolve(federation, algorithm, network, choices)
        resolved |= {"federation": _describe(members, form), "identity": identity}
        resolved |= {
            "machine": {**machine(torch.device("cpu"), 1, "flower"), "network": asdict(settings)},
            "versions": versions(),
        }
        introductions = clients.introduce(_read_introductions(folder) if earlier else None)
        writer = RunWriter(folder, resolved, config=config.to_toml(), resume=earlier is not None)
        try:
            writer.begin()
            _write_introductions(writer, introductions)
            _write_before(writer, clients.remarks(0))
            # Not beside: nodes forget memories that the last checkpoint does not name, so it must be on the disk.
            narrator = Narrator(plan.rounds)
            TrainingLoop(algorithm, federation, clients, plan, seeds, writer, narrator, save_beside=False).run()
        finally:
            writer.close()
    run = Run(folder)
    _check_answered(run)
    return run


def _check_answered(run: Run) -> None:
    """Raise FedatlasError if no client answered in any round: the model is the one that the run began with."""
    if any(line["answered"] for line in run.rounds):
        return
    reasons = [left["reason"] for line in run.rounds for left in line.get("left_out", ())]
    raise FedatlasError(
        f"no client trained in any of {len(run.rounds)} rounds. The first reason: {reasons[0] if reasons else 'none'}",
        code="nobody-answered",
        path=str(run.folder),
    )


TASKS: dict[str, Callable[[Config, Grid, Path], object]] = {
    "train": serve,
    "adapt": adapt_newcomers,
    CHECK: check_clients,
}


class Narrator:
    """Prints a line for each round to the server's log."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        return None

    def start_from(self, round: int) -> None:
        """Print where a resumed run goes on."""
        if round:
            print(f"going on after round {round}", flush=True)

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Print that a round is over."""
        score = f": {scores_line(metrics)}" if metrics else ""
        print(f"round {round} of {self.rounds}{score}", flush=True)


def _gather_again(exchange: Exchange, members: Sequence[Member]) -> None:
    """Wait for the clients of a resumed run: nodes need a while to find a restarted server."""
    names = {member.name for member in members}
    try:
        exchange.wait_for(names.issubset, f"the run's clients {', '.join(sorted(names))}")
    except UsageError as error:
        if error.code == "against-policy":
            raise
        missing = ", ".join(sorted(names - exchange.connected()))
        exchange.say(f"going on without {missing} until they return")


def _describe(members: Sequence[Member], form: DataForm) -> dict[str, Any]:
    """Return the record of the federation; label counts stay with the clients."""
    clients: list[dict[str, Any]] = [
        {
            "name": m.name,
            "domain": m.domain,
            "held_out": m.held_out,
            "num_train": m.num_train,
            "num_test": m.num_test,
            "label_counts": [],
            "key": m.key,
        }
        for m in members
    ]
    digest = hashlib.blake2b(json.dumps([clients, form.record()]).encode(), digest_size=16)
    return {
        "data": NETWORK,
        "kind": form.kind,
        **({} if form.task.has_classes else {"task": form.task.name}),
        "partition": "each client's own data, at its node",
        "classes": list(form.classes),
        "fingerprint": digest.hexdigest(),
        "clients": clients,
        "form": form.record(),
    }


def _read_earlier(folder: Path) -> dict[str, Any] | None:
    if not (folder / RESOLVED).exists():
        return None
    resolved = Run(folder).resolved
    if "identity" not in resolved:
        raise UsageError(
            f"{folder} holds a run that was not made over Flower; choose another folder.",
            code="run-unfit",
            path=str(folder),
        )
    return resolved


def _write_introductions(writer: RunWriter, introductions: Mapping[str, Memory]) -> None:
    """Save the clients' introductions: they are sent once, and a resumed run needs them."""
    joined = {f"{name}/{part}": own for name, memory in introductions.items() for part, own in memory.items()}
    if joined:
        writer.add(INTRODUCTIONS, memory_to_bytes(joined))


def _write_before(writer: RunWriter, remarks: Mapping[str, Any]) -> None:
    """Save the log of the time before round 1: the bytes of the atlas and of the introductions."""
    if (writer.folder / BEFORE).exists():
        writer.keep(BEFORE)
    else:
        writer.add(BEFORE, json.dumps(remarks, indent=1).encode())


def _read_introductions(folder: Path) -> dict[str, Memory]:
    if not (folder / INTRODUCTIONS).exists():
        return {}
    introductions: dict[str, Memory] = {}
    for key, own in memory_from_bytes((folder / INTRODUCTIONS).read_bytes()).items():
        name, _, part = key.rpartition("/")
        introductions.setdefault(name, {})[part] = own
    return introductions


def _earlier_members(resolved: Mapping[str, Any]) -> tuple[list[Member], DataForm, str]:
    federation = resolved["federation"]
    fields = ("name", "domain", "held_out", "num_train", "num_test", "key")
    members = [Member(**{field: client[field] for field in fields}) for client in federation["clients"]]
    return members, DataForm.from_values(federation["form"]), str(resolved["identity"])

"""The server's side: a ServerApp that plays the simulator's rounds over Flower's grid, and writes a usual run folder.

The folder is on the server. A run that was killed goes on from its last checkpoint when it is started again.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedatlas.atlas.sources import kept_atlas
from fedatlas.config.config import Config
from fedatlas.errors import DataError, FedatlasError, UsageError, unknown_name
from fedatlas.flower.node.request import atlas_form, load_config
from fedatlas.flower.protocol.data_form import DataForm, Member, natural_order
from fedatlas.flower.protocol.expectations import expected_replies
from fedatlas.flower.server.atlas import NetworkAtlas
from fedatlas.flower.server.exchange import Exchange, NetworkSettings
from fedatlas.flower.server.newcomers import adapt_newcomers
from fedatlas.flower.server.transport import FlowerClients
from fedatlas.parts.types import Memory
from fedatlas.runs.files import atomic_write, memory_from_bytes, memory_to_bytes
from fedatlas.runs.run import ATLAS, Run
from fedatlas.runs.schema import RESOLVED
from fedatlas.runs.writer import RunWriter, machine, versions
from fedatlas.seeds import repeatable
from fedatlas.training.loop import TrainingLoop
from fedatlas.training.model import make_model
from fedatlas.training.train import resolve

NETWORK, INTRODUCTIONS, BEFORE = "flower", "introductions.safetensors", "before.json"
QUIET = 10.0
"""Without ``flower.clients`` a run begins when no new client has come for this many seconds."""


def make_server_app(config: Path | str) -> ServerApp:
    """Return the ServerApp of a run, from its config file.

    ``flwr run --run-config`` takes ``folder``, the run's folder; ``settings``, changes of the config
    (``section.key=value``, separated by ``;``); and ``task``: ``train``, or later ``adapt`` for clients that joined
    after the training.

    >>> app = make_server_app("run.toml")  # doctest: +SKIP
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        folder = Path(str(context.run_config.get("folder", "runs/flower"))).expanduser()
        try:
            run = TASKS[_task(context)](load_config(config, context), grid, folder)
        except FedatlasError as error:
            print(f"error: {error}", flush=True)
            raise
        print(f"run: {run.folder}", flush=True)

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
        members, form = _gather(exchange, settings)
        identity = secrets.token_hex(8)
    print(f"{len(members)} clients: {', '.join(member.name for member in members)}", flush=True)
    atlas = None
    if (make := config.atlas_settings()) is not None:
        maker = NetworkAtlas(exchange, members, form, make, {"run": identity})
        with repeatable(torch.device("cpu")):
            atlas = kept_atlas(folder / ATLAS, maker.make, resume=earlier is not None)
    federation = form.stand_in(members)
    algorithm, choices = config.algorithm(atlas), config.run_settings(federation.data)
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
            _write_introductions(folder, introductions)
            _write_before(folder, clients.remarks(0))
            TrainingLoop(algorithm, federation, clients, plan, seeds, writer, Narrator(plan.rounds)).run()
        finally:
            writer.close()
    return Run(folder)


TASKS: dict[str, Callable[[Config, Grid, Path], Run]] = {"train": serve, "adapt": adapt_newcomers}


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
        score = f": accuracy {metrics['accuracy']:.1%}" if metrics else ""
        print(f"round {round} of {self.rounds}{score}", flush=True)


def _gather(exchange: Exchange, settings: NetworkSettings) -> tuple[list[Member], DataForm]:
    """Wait for the clients and return them in the roster's order, with the form of their data."""
    wanted = settings.clients
    if isinstance(wanted, list):
        names = [str(name) for name in wanted]
        exchange.wait_for(lambda online: online >= set(names), f"the clients {', '.join(names)}")
    elif wanted is not None:
        exchange.wait_for(lambda online: len(online) >= wanted, f"{wanted} clients")
        names = sorted(exchange.known, key=_roster_order(exchange))[:wanted]
    else:
        names = _wait_for_all(exchange)
    found = [exchange.known[name] for name in names]
    form = found[0].form
    for known in found[1:]:
        try:
            form = form.unite(known.form)
        except DataError as error:
            raise DataError(
                f"client {known.member.name}: {error}. All clients' examples must have the same form.",
                code=error.code,
                client=known.member.name,
                **error.fields,
            ) from None
    return [known.member for known in found], form.settled()


def _gather_again(exchange: Exchange, members: Sequence[Member]) -> None:
    """Wait for the clients of a resumed run: nodes need a while to find a restarted server."""
    names = {member.name for member in members}
    try:
        exchange.wait_for(names.issubset, f"the run's clients {', '.join(sorted(names))}")
    except UsageError:
        missing = ", ".join(sorted(names - exchange.connected()))
        exchange.say(f"going on without {missing} until they return")


def _wait_for_all(exchange: Exchange) -> list[str]:
    seen: set[str] = set()
    since = time.monotonic()

    def settled(online: set[str]) -> bool:
        nonlocal since, seen
        if online != seen:
            seen, since = set(online), time.monotonic()
        everyone = exchange.simulated and len(online) == len(list(exchange.grid.get_node_ids()))
        return bool(online) and (everyone or time.monotonic() - since > QUIET)

    names = exchange.wait_for(settled, "clients")
    return sorted(names, key=_roster_order(exchange))


def _roster_order(exchange: Exchange) -> Any:
    def key(name: str) -> tuple[int, Any]:
        position = exchange.known[name].position
        return (0, position) if position is not None else (1, natural_order(name))

    return key


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


def _write_introductions(folder: Path, introductions: Mapping[str, Memory]) -> None:
    """Save the clients' introductions: they are sent once, and a resumed run needs them."""
    joined = {f"{name}/{part}": own for name, memory in introductions.items() for part, own in memory.items()}
    if joined:
        atomic_write(folder / INTRODUCTIONS, memory_to_bytes(joined))


def _write_before(folder: Path, remarks: Mapping[str, Any]) -> None:
    """Save the log of the time before round 1: the bytes of the atlas and of the introductions."""
    if not (folder / BEFORE).exists():
        atomic_write(folder / BEFORE, json.dumps(remarks, indent=1).encode())


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

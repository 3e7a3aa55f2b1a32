"""Federations for tests: clients behind a grid in this process, or a SuperLink and SuperNodes as real processes."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.flower import simulated as simulated
from fedatlas.config import Config
from fedatlas.data import Client, Dataset, Federation
from fedatlas.engines import Simulator
from fedatlas.flower import (
    DataForm,
    Exchange,
    FlowerClients,
    LocalFederation,
    NetworkSettings,
    expected_replies,
    policy_text,
    write_app,
    write_npz,
)
from fedatlas.flower.node.app import make_client_app
from fedatlas.parts import Algorithm
from fedatlas.runs import Run
from fedatlas.seeds import generator
from fedatlas.testing import InProcessGrid, Tamper, tiny_federation
from fedatlas.training import make_model

PATIENCE = 400
"""Seconds that a test waits; a run takes a tenth of it on a machine that is not busy."""
LIAR = "client-1"
"""The node that lies, in tests of such."""


def clients(count: int, kind: str = "features") -> Federation:
    """Return the first clients of a tiny federation."""
    federation = tiny_federation("images" if kind == "images" else "features")
    return replace(federation, clients=federation.clients[:count])


def some_dark(count: int) -> Federation:
    """Return clients with three classes of images; those of every second client are dark."""
    rng = generator(0, "test", "some dark")
    labels = torch.arange(30 * count) % 3
    noise = 0.3 * torch.randn(30 * count, 3, 8, 8, generator=rng)
    images = ((torch.randn(3, 3, 8, 8, generator=rng)[labels] + noise) * 40 + 128).clamp(0, 255).to(torch.uint8)
    parts = torch.arange(30 * count).split(30)
    for part in parts[::2]:
        images[part] //= 6
    data = Dataset(name="some dark", inputs=images, labels=labels, classes=("a", "b", "c"))
    members = (Client(name=f"client-{i}", train=own[6:], test=own[:6]) for i, own in enumerate(parts))
    return Federation(data=data, clients=tuple(members))


def config_of(name: str, *settings: str, count: int, rounds: int = 2) -> Config:
    """Return a config of a short run over a network of so many nodes."""
    own = [
        f"algorithm.name={name}",
        "model.name=mlp",
        "training.batch_size=8",
        f"training.rounds={rounds}",
        f"training.evaluate_every={rounds}",
        f"flower.clients={count}",
        f"flower.wait={PATIENCE}",
        f"flower.deadline={PATIENCE}",
    ]
    return Config.load(None, [*own, *settings])


def without_held_out(federation: Federation) -> Federation:
    """Return the federation of the clients that train."""
    return replace(federation, clients=tuple(c for c in federation.clients if not c.held_out))


def handed_out(federation: Federation, folder: Path) -> dict[str, dict[str, Any]]:
    """Write every client's data to a file and return the nodes' configs."""
    nodes: dict[str, dict[str, Any]] = {}
    for i, client in enumerate(federation.clients):
        data = write_npz(federation, i, folder / f"{client.name}.npz")
        nodes[client.name] = {"client": client.name, "data": str(data), "policy": str(open_policy(folder))}
    return nodes


def open_policy(folder: Path) -> Path:
    """Write a policy that allows everything, for tests of other things."""
    path = folder / "policy.toml"
    path.write_text(policy_text(everything=True))
    return path


def flower_clients(
    algorithm: Algorithm, config: Config, federation: Federation, folder: Path, tamper: Tamper | None = None
) -> FlowerClients:
    """Return clients behind a grid in this process; their nodes know the config's algorithm, not that of the server."""
    (folder / "run.toml").write_text(config.to_toml())
    nodes = handed_out(federation, folder / "data")
    grid = InProcessGrid(make_client_app(folder / "run.toml"), nodes, tamper=tamper)
    exchange = Exchange(grid, NetworkSettings(**config.values["flower"]), lambda line: None)
    exchange.wait_for(lambda online: len(online) == len(nodes), "all clients")
    known = [exchange.known[client.name] for client in federation]
    form = reduce(DataForm.unite, (client.form for client in known))
    network = network_of(algorithm, config, federation)
    about = {"run": "7e57", "atlas": "", **form.values()}
    expected = expected_replies(algorithm, network, form)
    return FlowerClients(exchange, algorithm, network, [client.member for client in known], expected, about=about)


def simulator(algorithm: Algorithm, config: Config, federation: Federation) -> Simulator:
    """Return the same clients in a simulator."""
    network, seed = network_of(algorithm, config, federation), config.seeds().batches
    return Simulator(algorithm, network, federation, work=config.work(), seed=seed, workers=1)


def network_of(algorithm: Algorithm, config: Config, federation: Federation) -> nn.Module:
    """Return the config's model."""
    name, options = config.model(federation.data)
    return make_model(name, options, federation, algorithm, config.seeds().model)


@contextmanager
def network(
    federation: Federation, config: Config, folder: Path, *, leave_out: tuple[str, ...] = ()
) -> Iterator[LocalFederation]:
    """Start a node for every client; the app lies in folder/app, the run will be in folder/run."""
    nodes = handed_out(federation, folder / "data")
    write_app(folder / "app", config, run_folder=folder / "run")
    with LocalFederation(folder / "network", nodes=list(nodes)) as local:
        for name, settings in nodes.items():
            if name not in leave_out:
                local.start_node(name, **{k: v for k, v in settings.items() if k != "client"})
        yield local


def wait_until(happened: Callable[[], bool], what: str) -> None:
    """Wait for something that must happen soon."""
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < PATIENCE, f"waited in vain for {what}"
        time.sleep(0.2)


def finished_rounds(folder: Path) -> int:
    """Return how many rounds a run's record holds."""
    file = folder / "rounds.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


def bytes_by_way(run: Run) -> Mapping[str, int]:
    """Return the bytes that went down and up in a run."""
    found = [client for line in run.rounds for client in line["bytes"].values()]
    return {way: sum(entry[way] for entry in found) for way in ("down", "up")}


def reasons(run: Run) -> str:
    """Return why the liar was left out."""
    return " ".join(entry["reason"] for line in run.rounds for entry in line["left_out"] if entry["client"] == LIAR)


def is_whole(run: Run) -> bool:
    """Return whether the model is finite and about as long as one that nobody lied to."""
    length = math.sqrt(sum(float(t.double().square().sum()) for t in run.parameters().values()))
    return math.isfinite(length) and length < 50

"""Runs over real SuperLink and SuperNode processes on loopback, with TLS and node keys."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedatlas.config import Config
from fedatlas.data.federation import Federation
from fedatlas.rehearsal import tiny_federation
from fedatlas.runs import Run
from flower_network import PATIENCE, bytes_by_way, network, simulated
from tiny import same_bits


def clients(count: int, kind: str = "features") -> Federation:
    federation = tiny_federation("images" if kind == "images" else "features")
    return replace(federation, clients=federation.clients[:count])


def config_of(name: str, *settings: str, count: int, rounds: int = 2) -> Config:
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


def test_scaffold_over_a_network_ends_with_the_simulators_bits(tmp_path: Path) -> None:
    federation, config = clients(2), config_of("scaffold", count=2)
    with network(federation, config, tmp_path) as local:
        local.run(tmp_path / "app", timeout=PATIENCE)
    run, here = Run(tmp_path / "run"), simulated(config, federation, tmp_path / "here")
    assert same_bits(run.parameters(), here.parameters())
    assert run.last["accuracy"] == here.last["accuracy"]
    assert [line["left_out"] for line in run.rounds] == [[], []]
    assert bytes_by_way(run)["up"] > 0
    keys = [client["key"] for client in run.resolved["federation"]["clients"]]
    assert all(keys)
    assert len(set(keys)) == 2


NORMS = {"fedbn": "batch", "fedpce": "instance"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "feddyn", "moon", "fedbn", "fediir", "fedmix", "fedpce"])
def test_an_algorithm_over_a_network_ends_with_the_simulators_bits(name: str, tmp_path: Path) -> None:
    kind = "images" if name in {"fedmix", *NORMS} else "features"
    model = ["model.name=cnn", *([f"model.norm={NORMS[name]}"] if name in NORMS else [])] if kind == "images" else []
    federation, config = clients(3, kind), config_of(name, *model, count=3, rounds=3)
    with network(federation, config, tmp_path) as local:
        local.run(tmp_path / "app", timeout=PATIENCE)
    run, here = Run(tmp_path / "run"), simulated(config, federation, tmp_path / "here")
    assert same_bits(run.parameters(), here.parameters())
    assert all(not line["left_out"] for line in run.rounds)

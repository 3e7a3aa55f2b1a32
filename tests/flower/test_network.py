"""Runs over real SuperLink and SuperNode processes on loopback, with TLS and node keys."""

from pathlib import Path

import pytest

from fedatlas.atlas import Atlas
from fedatlas.runs import Run
from fedatlas.testing import state_tensors
from flower_network import PATIENCE, bytes_by_way, clients, config_of, network, simulated, some_dark
from tiny import same_bits


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


@pytest.mark.filterwarnings("ignore:client-2 will take no step")  # it has one example
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


@pytest.mark.filterwarnings("ignore:client-2 will take no step")  # it has one example
@pytest.mark.slow
def test_clients_that_choose_their_group_over_a_network_end_with_the_simulators_bits(tmp_path: Path) -> None:
    # In a group of two, one of them with a single example, the other counts more than the network's limit for one.
    own = ["algorithm.seed=2", "flower.most_weight=none"]
    federation, config = clients(3), config_of("ifca", *own, count=3, rounds=3)
    with network(federation, config, tmp_path) as local:
        local.run(tmp_path / "app", timeout=PATIENCE)
    run, here = Run(tmp_path / "run"), simulated(config, federation, tmp_path / "here")
    state, wanted = run.checkpoint().state, here.checkpoint().state
    assert len(state.groups) == 2
    assert same_bits(state_tensors(state), state_tensors(wanted))
    assert all(not line["left_out"] for line in run.rounds)
    assert run.last["accuracy"] == here.last["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "fedbn"])
def test_groups_of_an_atlas_over_a_network_end_with_the_simulators_bits(base: str, tmp_path: Path) -> None:
    """The atlas is made over the network, the trial is round 3, and all groups have left after it."""
    federation = some_dark(4)
    config = config_of(
        base,
        "model.name=cnn",
        "model.norm=batch",
        'atlas.make={ source = "class-prototypes" }',
        'atlas.use=["group"]',
        "sharing.pilot=1",
        "sharing.threshold=-1000000000.0",
        count=4,
        rounds=4,
    )
    with network(federation, config, tmp_path) as local:
        local.run(tmp_path / "app", timeout=PATIENCE)
    run = Run(tmp_path / "run")
    here = simulated(config, federation, tmp_path / "here", Atlas.load(run.folder / "atlas.safetensors"))
    state, wanted = run.checkpoint().state, here.checkpoint().state
    assert [state.group(client) for client in range(4)] == [0, 1, 0, 1]
    assert same_bits(state_tensors(state), state_tensors(wanted))
    assert all(not line["left_out"] for line in run.rounds)
    assert run.rounds[2]["groups"]["trained"] == {"common": 4, "rival": 4, "groups": 4}
    assert run.last["accuracy"] == here.last["accuracy"]

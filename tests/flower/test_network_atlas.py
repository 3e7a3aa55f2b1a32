"""An atlas made over the network is the same as the simulator's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedatlas.atlas import Atlas, make_atlas
from fedatlas.config import Config
from fedatlas.data import Federation
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server.app import serve
from fedatlas.testing import InProcessGrid, state_tensors, tiny_federation
from flower_network import handed_out, simulated, some_dark, without_held_out
from tiny import same_bits

SMALL = "{ layers = 1, feed_forward = 8, local_epochs = 1, cohort = 0.5, upload = 5 }"


def config_that_makes(make: str, *settings: str) -> Config:
    own = [
        "algorithm.name=fedavgm",
        "model.name=cnn",
        "training.rounds=2",
        "training.cohort=3",
        "training.batch_size=8",
        "training.evaluate_every=2",
        "flower.clients=6",
        f"atlas.make={make}",
        'atlas.use=["sample", "aggregate", "train"]',
    ]
    return Config.load(None, [*own, *settings])


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDATLAS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("strategy", ["federated", "global"])
def test_client2vec_over_fedavgm_ends_with_the_simulators_bits(strategy: str, tmp_path: Path) -> None:
    make = f'{{ source = "client2vec", strategy = "{strategy}", epochs = 2, settings = {SMALL} }}'
    run, grid = played(config_that_makes(make), tmp_path)
    assert (grid.kinds.count("query.pairs") > 0) == (strategy == "global")
    check_same_atlas_and_bits(config_that_makes(make), run, tmp_path)


@pytest.mark.parametrize("source", ["label-histogram", "feature-average", "class-prototypes"])
def test_a_plain_atlas_is_the_simulators(source: str, tmp_path: Path) -> None:
    config = config_that_makes(f'{{ source = "{source}" }}', 'atlas.use=["sample", "aggregate"]')
    run, grid = played(config, tmp_path)
    assert "train.index" not in grid.kinds
    check_same_atlas_and_bits(config, run, tmp_path)


def test_the_groups_of_an_atlas_end_with_the_simulators_bits(tmp_path: Path) -> None:
    config = config_that_makes('{ source = "class-prototypes" }', 'atlas.use=["group"]', "sharing.groups=2")
    run, _ = played(config, tmp_path)
    assert len(run.checkpoint().state.groups) == 2
    check_same_atlas_and_bits(config, run, tmp_path)


def test_groups_that_the_atlas_finds_are_tried_over_a_network(tmp_path: Path) -> None:
    federation = some_dark(6)
    config = config_that_makes('{ source = "class-prototypes" }', 'atlas.use=["group"]', "sharing.pilot=1")
    run, grid = played(config, tmp_path, federation)
    assert "query.losses" in grid.kinds
    assert run.rounds[-1]["groups"]["count"] == 2
    assert run.groups is not None
    assert [trial.round for trial in run.groups.trials] == [1]
    assert run.groups.trained["rival"] == 3
    check_same_atlas_and_bits(config, run, tmp_path, federation)


def test_pairs_stay_on_the_node_unless_the_config_says_global(tmp_path: Path) -> None:
    make = f'{{ source = "client2vec", epochs = 1, settings = {SMALL} }}'
    run, grid = played(config_that_makes(make), tmp_path)
    assert "query.pairs" not in grid.kinds
    assert run.resolved["algorithm"]["sampler"]["atlas"]["provenance"]["strategy"] == "federated"


def played(config: Config, folder: Path, federation: Federation | None = None) -> tuple[Any, InProcessGrid]:
    federation = federation if federation is not None else without_held_out(tiny_federation("images"))
    (folder / "run.toml").write_text(config.to_toml())
    nodes = handed_out(federation, folder / "data")
    grid = InProcessGrid(make_client_app(folder / "run.toml"), nodes)
    return serve(Config.load(folder / "run.toml"), grid, folder / "flower"), grid


def check_same_atlas_and_bits(config: Config, run: Any, folder: Path, federation: Federation | None = None) -> None:
    federation = federation if federation is not None else without_held_out(tiny_federation("images"))
    options = config.atlas_settings()
    assert options is not None
    wanted = make_atlas(federation, **options, workers=1, progress=False)
    found = Atlas.load(run.folder / "atlas.safetensors")
    assert found.names == wanted.names
    assert all(torch.equal(found.halves[half], wanted.halves[half]) for half in wanted.halves)
    assert (found.summary is None) == (wanted.summary is None)
    if found.summary is not None and wanted.summary is not None:
        assert same_bits(found.summary.tensors(), wanted.summary.tensors())
    here = simulated(config, federation, folder / "here", wanted)
    assert same_bits(state_tensors(run.checkpoint().state), state_tensors(here.checkpoint().state))

"""Every algorithm ends over Flower's messages with the bits that the simulator ends with."""

from pathlib import Path

import pytest
import torch

from fedatlas.algorithms import standalone
from fedatlas.config.config import Config
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server.app import serve
from fedatlas.testing.flower_grid import InProcessGrid
from fedatlas.testing.tiny import state_tensors, tiny_federation
from flower_network import handed_out, simulated, without_held_out
from tiny import same_bits

PROMPTED = ("model.name=prompted_vit", "model.weights=untrained", "model.width=8", "model.depth=1", "model.heads=2")
MODELS = {
    "fedmix": ("model.name=cnn",),
    "harmofl": ("model.name=cnn",),
    "fedbn": ("model.name=cnn", "model.norm=instance"),
    "fedpce": ("model.name=cnn", "model.norm=instance"),
    "fedgc": PROMPTED,
    "fedgr": PROMPTED,
    "fedgcr": PROMPTED,
}
"""The models of algorithms that need more than linear layers on features."""


@pytest.mark.parametrize("name", standalone())
def test_an_algorithm_ends_with_the_simulators_bits(name: str, tmp_path: Path) -> None:
    federation = without_held_out(tiny_federation("images" if name in MODELS else "features"))
    settings = [
        f"algorithm.name={name}",
        "training.rounds=3",
        "training.cohort=4",
        "training.batch_size=8",
        "training.evaluate_every=3",
        "flower.clients=6",
        *MODELS.get(name, ("model.name=mlp",)),
    ]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    config = Config.load(tmp_path / "run.toml")
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), handed_out(federation, tmp_path / "data"))
    over_flower = serve(config, grid, tmp_path / "flower")
    here = simulated(config, federation, tmp_path / "here")
    there, wanted = (state_tensors(run.checkpoint().state) for run in (over_flower, here))
    assert same_bits(there, wanted)
    assert [r["cohort"] for r in over_flower.rounds] == [r["cohort"] for r in here.rounds]
    assert over_flower.rounds[-1]["left_out"] == []
    torch.testing.assert_close(over_flower.last["loss"], here.last["loss"])

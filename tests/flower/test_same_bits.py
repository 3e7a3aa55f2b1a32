"""Every algorithm ends over Flower's messages with the bits that the simulator ends with."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from flwr.app import Context, Message

from fedatlas.algorithms import standalone
from fedatlas.config import Config
from fedatlas.flower.node import request, settings
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server.app import serve
from fedatlas.testing import InProcessGrid, state_tensors, tiny_federation
from flower_network import clients, config_of, handed_out, simulated, without_held_out
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
    own = [
        f"algorithm.name={name}",
        "training.rounds=3",
        "training.cohort=4",
        "training.batch_size=8",
        "training.evaluate_every=3",
        "flower.clients=6",
        *MODELS.get(name, ("model.name=mlp",)),
    ]
    (tmp_path / "run.toml").write_text(Config.load(None, own).to_toml())
    config = Config.load(tmp_path / "run.toml")
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), handed_out(federation, tmp_path / "data"))
    over_flower = serve(config, grid, tmp_path / "flower")
    here = simulated(config, federation, tmp_path / "here")
    there, wanted = (state_tensors(run.checkpoint().state) for run in (over_flower, here))
    assert same_bits(there, wanted)
    assert [r["cohort"] for r in over_flower.rounds] == [r["cohort"] for r in here.rounds]
    assert over_flower.rounds[-1]["left_out"] == []
    torch.testing.assert_close(over_flower.last["loss"], here.last["loss"])


def test_a_node_builds_its_network_once_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is asked for a training or for a test alone, and whatever it was asked before."""
    federation = clients(4)
    # Of two clients, one with a single example, the other counts more than the network's limit for one.
    own = ["training.cohort=2", "training.evaluate_every=1", "flower.most_weight=none"]
    config = config_of("fedavg", *own, count=4, rounds=6)
    (tmp_path / "run.toml").write_text(config.to_toml())
    here, make, built = make_client_app(tmp_path / "run.toml"), request.make_model, []
    kept: dict[tuple[ModuleType, int], list[object]] = {}

    def in_its_own_process(message: Message, context: Context) -> Message:
        for module in (request, settings):
            monkeypatch.setattr(module, "_last", kept.setdefault((module, context.node_id), []))
        return here(message, context)

    monkeypatch.setattr(request, "make_model", lambda *given: built.append(1) or make(*given))
    grid = InProcessGrid(in_its_own_process, handed_out(federation, tmp_path / "data"))  # type: ignore[arg-type]
    run = serve(config, grid, tmp_path / "flower")
    asked = [kind for kind in grid.kinds if kind != "query.hello"]
    assert (len(asked), len(built)) == (26, 4)
    wanted = simulated(config, federation, tmp_path / "here")
    assert same_bits(run.parameters(), wanted.parameters())
    assert [r["evaluation"]["accuracy"] for r in run.rounds] == [r["evaluation"]["accuracy"] for r in wanted.rounds]

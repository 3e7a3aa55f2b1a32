"""A client that joins after the training adapts the model on its node and sends the results to the server."""

import json
from pathlib import Path

import torch

from fedatlas.adapting.export import load_personalised
from fedatlas.config.config import Config
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.newcomers import adapt_newcomers
from fedatlas.testing.flower_grid import InProcessGrid
from fedatlas.testing.tiny import tiny_federation
from flower_network import handed_out, without_held_out


def test_a_newcomer_tunes_its_embedding_and_sends_no_number_of_it(tmp_path: Path) -> None:
    settings = [
        "algorithm.name=fedpce",
        "model.name=cnn",
        "model.norm=instance",
        "training.rounds=2",
        "training.batch_size=8",
        "flower.clients=5",
        "flower.adapt={ rounds = 2, steps = 3 }",
    ]
    (tmp_path / "run.toml").write_text(Config.load(None, settings).to_toml())
    config = Config.load(tmp_path / "run.toml")
    nodes = handed_out(without_held_out(tiny_federation("images")), tmp_path / "data")
    nodes["client-5"]["memory"] = str(tmp_path / "node")
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes)
    grid.online.discard(6)
    serve(config, grid, tmp_path / "run")
    grid.online.add(6)
    run = adapt_newcomers(config, grid, tmp_path / "run")
    (record,) = json.loads((tmp_path / "run" / "adapted.json").read_text())
    assert record["client"] == "client-5"
    assert (record["num_tuned"], record["num_steps"]) == (32, 6)
    assert record["bytes_sent"] < 2000 < record["bytes_received"]
    assert record["embedding"] is None
    assert run.report().exists()
    (network,) = (tmp_path / "node").rglob("adapted.safetensors")
    model = load_personalised(network)
    assert model(torch.zeros(2, 3, 8, 8))[1].shape == (2, 3)
    received = json.loads(next((tmp_path / "node").rglob("resolved.json")).read_text())
    assert received["federation"]["clients"] == []

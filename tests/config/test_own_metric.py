"""A metric of the user's in one file: named in a config, allowed by hand, carried by records, Flower and adapting."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import fedatlas
from fedatlas.cli.app import app
from fedatlas.config.config import Config
from fedatlas.errors import UsageError
from fedatlas.flower import serve
from fedatlas.flower.node.app import make_client_app
from fedatlas.testing import InProcessGrid
from flower_network import handed_out, simulated
from raising import raises

OWN = """
import fedatlas

@fedatlas.metric_function("doubt", higher_is_better=False)
def doubt(logits, labels):
    return 1 - logits.softmax(1).max(1).values.mean()

def plain(logits, labels):
    return float((logits.argmax(1) == labels).double().mean())
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "own.py").write_text(OWN)
    rng = np.random.default_rng(0)
    owner = [f"site-{i % 3}" for i in range(90)]
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(90, 4)), y=np.arange(90) % 3, owner=owner)
    names = [f"{tmp_path / 'own.py'}:{name}" for name in ("doubt", "plain")]
    settings = [f"data.source={tmp_path / 'mine.npz'}", f"training.metrics={names}", "training.rounds=2"]
    return Config.load(None, [*settings, "model.name=mlp", "data.held_out=1", "flower.clients=2"])


def test_a_config_s_own_metric_runs_only_where_it_is_allowed_and_adapting_carries_it(
    config: Config, tmp_path: Path
) -> None:
    (tmp_path / "run.toml").write_text(config.to_toml())
    command = ["train", "-c", str(tmp_path / "run.toml"), "-f", str(tmp_path / "run")]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 2
    assert "--allow-code" in refused.output
    with raises(UsageError, "code-not-allowed"):
        config.plan()
    allowed = [word for name in config.values["training"]["metrics"] for word in ("--allow-code", name)]
    done = CliRunner().invoke(app, [*command, *allowed])
    assert done.exit_code == 0, done.output
    run = fedatlas.Run(tmp_path / "run")
    assert run.last["plain"] == run.last["accuracy"]
    assert not run.higher_is_better("doubt")
    assert all(0 < line["doubt"] < 1 for line in run.clients if "doubt" in line)
    done = CliRunner().invoke(app, ["adapt", str(tmp_path / "run"), "--rounds", "1", *allowed])
    assert done.exit_code == 0, done.output
    (record,) = fedatlas.Run(tmp_path / "run").adapted
    assert record["metrics"]["after"]["plain"] == record["accuracy_after"]


def test_flower_carries_an_own_metric(config: Config, tmp_path: Path) -> None:
    for name in config.values["training"]["metrics"]:
        fedatlas.allow_code(name)
    whole = config.federation()
    federation = fedatlas.federate(whole.data)
    (tmp_path / "run.toml").write_text(config.to_toml())
    grid = InProcessGrid(make_client_app(tmp_path / "run.toml"), handed_out(federation, tmp_path / "data"))
    there = serve(Config.load(tmp_path / "run.toml", ["flower.clients=3"]), grid, tmp_path / "flower")
    here = simulated(config, federation, tmp_path / "here")
    for name in ("doubt", "plain"):
        assert there.last[name] == pytest.approx(here.last[name])

"""A run that its nodes do not allow ends at once, with one line that says who has to write what where."""

import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message

from fedatlas.config import Config
from fedatlas.errors import UsageError
from fedatlas.flower.deploy.launch import LaunchError, LocalFederation
from fedatlas.flower.deploy.template import write_app
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.node.policy import Policy, Wanted, policy_text
from fedatlas.flower.protocol.messages import BadReplyError
from fedatlas.flower.server import exchange
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.check import check_clients
from fedatlas.flower.server.refusals import raise_node_error
from fedatlas.testing import InProcessGrid
from flower_network import PATIENCE, clients, config_of, handed_out
from raising import raises

NAMES = ("client-0", "client-1", "client-2")
SCAFFOLD = 'add "scaffold" to disclosures in policy.toml'


def agreeing(folder: Path, *agreed: tuple[str, ...], settings: tuple[str, ...] = ()) -> tuple[Config, InProcessGrid]:
    """Return a run that waits for three nodes, and the nodes, each of which agrees to some disclosures."""
    config = config_of("fedavg", *settings, count=3)
    (folder / "run.toml").write_text(config.to_toml())
    nodes = handed_out(clients(len(agreed)), folder / "data")
    for (name, own), names in zip(nodes.items(), agreed, strict=True):
        enough = policy_text(Wanted(disclosures=names)).replace("least_examples = 10", "least_examples = 1")
        (folder / f"{name}.toml").write_text(enough)
        own["policy"] = str(folder / f"{name}.toml")
    return config, InProcessGrid(make_client_app(folder / "run.toml"), nodes)


def asked_for_a_check(grid: InProcessGrid) -> InProcessGrid:
    for context in grid.contexts.values():
        context.run_config["task"] = "check"
    return grid


def test_a_check_that_no_node_allows_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, grid = agreeing(tmp_path, (), (), ())
    began = time.monotonic()
    with raises(UsageError, "against-policy", clients=list(NAMES)) as caught:
        check_clients(config, asked_for_a_check(grid), tmp_path / "run")
    assert time.monotonic() - began < 10
    assert str(caught.value) == (
        "3 nodes do not allow this run (client-0, client-1, client-2). "
        'Ask each owner to add "check" to disclosures in policy.toml.'
    )
    assert grid.kinds == ["query.hello"] * 3, "each is asked once"
    assert "<class" not in (said := capsys.readouterr().out)
    assert max(map(len, said.splitlines())) < 160


def test_what_the_line_says_is_enough(tmp_path: Path) -> None:
    """Owners who wrote what they were asked for get their check, and a run with two disclosures is told both."""
    config, grid = agreeing(tmp_path, ("check",), ("check",), ("check",))
    check_clients(config, asked_for_a_check(grid), tmp_path / "run")
    (tmp_path / "both").mkdir()
    both = ('algorithm={ name = "feddisco", base = "scaffold" }',)
    config, grid = agreeing(tmp_path / "both", (), (), (), settings=both)
    with raises(UsageError, "against-policy") as caught:
        serve(config, grid, tmp_path / "both" / "run")
    assert 'add "feddisco" and "scaffold" to disclosures in policy.toml' in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("algorithm.name=scaffold", SCAFFOLD),
        ("algorithm.name=ifca", 'add "groups" to sharing in policy.toml'),
        ("model.name=hf:some/model", 'add "model.name" to settings in policy.toml'),
    ],
)
def test_a_training_that_no_node_allows_ends_in_one_line(setting: str, said: str, tmp_path: Path) -> None:
    config, grid = agreeing(tmp_path, (), (), (), settings=(setting,))
    began = time.monotonic()
    with raises(UsageError, "against-policy", clients=list(NAMES)) as caught:
        serve(config, grid, tmp_path / "run")
    assert time.monotonic() - began < 10
    assert said in str(caught.value)


def test_each_owner_is_told_what_it_refuses(tmp_path: Path) -> None:
    config, grid = agreeing(tmp_path, (), (), (), settings=("algorithm.name=scaffold",))
    (tmp_path / "client-1.toml").write_text("least_examples = 1000")
    with raises(UsageError, "against-policy") as caught:
        serve(config, grid, tmp_path / "run")
    assert f"2 nodes do not allow this run (client-0, client-2). Ask each owner to {SCAFFOLD}. " in str(caught.value)
    assert "1 node does not allow this run (client-1). Why: batch_size 8 is below the 1000 examples" in str(
        caught.value
    )


def test_a_run_whose_nodes_may_still_come_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three agrees: the run waits for two more, as before. Where none agrees and none comes, it ends."""
    scaffold = ("algorithm.name=scaffold", "flower.wait=1")
    config, grid = agreeing(tmp_path, (), ("scaffold",), (), settings=scaffold)
    with raises(UsageError, "clients-missing", connected=["client-1"]):
        serve(config, grid, tmp_path / "run")
    monkeypatch.setattr(exchange, "QUIET", 0.5)
    (tmp_path / "two").mkdir()
    config, grid = agreeing(tmp_path / "two", (), (), settings=scaffold[:1])
    began = time.monotonic()
    with raises(UsageError, "against-policy", clients=["client-0", "client-1"]):
        serve(config, grid, tmp_path / "two" / "run")
    assert 0.5 < time.monotonic() - began < 10


def test_a_node_that_takes_back_its_agreement_is_not_asked_again(tmp_path: Path) -> None:
    """It agreed at the hello; the message after it is refused, and the run needs it of every node."""
    config, grid = agreeing(tmp_path, ("check",), ("check",), ("check",))
    asked_for_a_check(grid)
    push = grid.push_messages

    def change(messages: list[Message]) -> list[str]:
        if messages[0].metadata.message_type == "query.sums":
            (tmp_path / "client-2.toml").write_text("least_examples = 1")
        return list(push(messages))

    grid.push_messages = change  # type: ignore[method-assign, assignment]
    with raises(UsageError, "against-policy", clients=["client-2"]):
        check_clients(config, grid, tmp_path / "run")
    assert grid.kinds.count("query.sums") == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("<class 'fedatlas.flower.node.line.NodeError'>:<'its data cannot be used'>", "its data cannot be used"),
        ("<class 'a.B'>:<'it is \n'quoted'>", "it is 'quoted"),
        ("the node is gone\x1b[2J", "the node is gone\\x1b[2J"),
    ],
)
def test_a_node_s_words_are_read_without_the_name_of_an_exception(given: str, said: str) -> None:
    class Reply:
        error = Error(0, given)

        def has_error(self) -> bool:
            return True

    with raises(BadReplyError, "node-error", reason=said):
        raise_node_error(Reply())  # type: ignore[arg-type]


def test_the_line_that_is_asked_for_is_one_that_a_policy_takes(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('disclosures = ["tables", "check"]\nsettings = ["*", "model.name"]\n')
    Policy.load(tmp_path / "policy.toml").check_disclosed({"check": "", "tables": ""})


@pytest.mark.slow
def test_supernodes_with_the_default_policy_end_a_check_at_once(tmp_path: Path) -> None:
    """Three nodes as `fedatlas flower node` starts them; then their owners write the line, and the check ends well."""
    rng, names = np.random.default_rng(0), ["alpha", "beta", "gamma"]
    config = Config.load(None, ["algorithm.name=fedavg", "model.name=linear", "flower.clients=3"])
    write_app(tmp_path / "app", config, run_folder=tmp_path / "run")
    with LocalFederation(tmp_path / "network", nodes=names) as local:
        for name in names:
            np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(60, 5)), y=np.arange(60) % 2)
            (tmp_path / f"{name}.toml").write_text(policy_text())
            local.start_node(name, data=str(tmp_path / f"{name}.npz"), policy=str(tmp_path / f"{name}.toml"))
        run = local.start_run(tmp_path / "app", task="check")
        began = time.monotonic()
        with pytest.raises(LaunchError):
            local.wait(run, timeout=PATIENCE)
        took, log = time.monotonic() - began, local.server_log(run)
        line = (
            "error: 3 nodes do not allow this run (alpha, beta, gamma). "
            'Ask each owner to add "check" to disclosures in policy.toml.'
        )
        assert line in log
        assert "NodeError" not in log
        assert "alpha does not take part" in log
        assert took < 90, "it waits for nobody"
        for name in names:
            (tmp_path / f"{name}.toml").write_text(policy_text(Wanted(disclosures=["check"])))
        local.run(tmp_path / "app", task="check", timeout=PATIENCE)
    assert (tmp_path / "run" / "check.json").exists()

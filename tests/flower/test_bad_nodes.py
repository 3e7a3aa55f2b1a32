"""A server and one node that lies: about its size, its data, its change or its losses. The run goes on without harm."""

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedatlas.algorithms import fedavg, krum
from fedatlas.errors import DataError, UsageError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.protocol.data_form import MOST_CLASSES, DataForm
from fedatlas.flower.server.app import serve
from fedatlas.flower.server.exchange import NetworkSettings
from fedatlas.flower.server.safety import MostWeight, capped_weights, out_of_scale, ruined
from fedatlas.parts import Cohort, ServerState, Upload
from fedatlas.runs import Run
from fedatlas.testing import InProcessGrid
from flower_network import LIAR, clients, config_of, handed_out, is_whole, reasons
from raising import raises

pytestmark = pytest.mark.attack("a node means harm")

NODES = 5
Lie = Callable[[RecordDict], RecordDict]


def play(folder: Path, kinds: str | tuple[str, ...], lie: Lie, *settings: str, count: int = NODES) -> Run:
    """Return a run of two rounds in which one node lies in its replies to some kinds of message."""
    (folder / "data").mkdir(parents=True)
    config = config_of("fedavg", "flower.wait=2", *settings, count=count)
    (folder / "run.toml").write_text(config.to_toml())

    def tamper(name: str, message: Message, content: RecordDict) -> RecordDict:
        return lie(content) if name == LIAR and message.metadata.message_type in kinds else content

    nodes = handed_out(clients(NODES), folder / "data")
    return serve(config, InProcessGrid(make_client_app(folder / "run.toml"), nodes, tamper=tamper), folder / "run")


def claiming(**claims: Any) -> Lie:
    """Return a lie in a hello or in what a reply says about itself."""

    def lie(content: RecordDict) -> RecordDict:
        content["about"] = ConfigRecord({**content.config_records["about"], **claims})
        return content

    return lie


def sending(record: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Lie:
    """Return a lie in the tensors of a record."""

    def lie(content: RecordDict) -> RecordDict:
        own = content.array_records[record].to_torch_state_dict()
        content[record] = ArrayRecord(OrderedDict((name, change(tensor)) for name, tensor in own.items()))
        return content

    return lie


CHANGES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "a huge change": (lambda tensor: torch.full_like(tensor, 1e30), "the largest number taken is 1e+06"),
    "a change of 1e6": (lambda tensor: torch.full_like(tensor, 9e5), "times as long as the median one"),
    "a change scaled by -1000": (lambda tensor: -1000 * tensor, "times as long as the median one"),
}


@pytest.mark.parametrize("lie", CHANGES)
def test_a_change_out_of_scale_is_left_out(lie: str, tmp_path: Path) -> None:
    change, reason = CHANGES[lie]
    run = play(tmp_path, "train", sending("change", change))
    assert reason in reasons(run)
    assert is_whole(run)
    assert all(LIAR not in line["answered"] for line in run.rounds)


Part = Callable[[str, torch.Tensor], torch.Tensor]
STATISTICS: dict[str, tuple[Part, str]] = {
    "means and 1e6": (lambda name, t: t + 1e6 if "mean" in name else t, "its running_mean moved"),
    "variances and 1e14": (lambda name, t: t + 1e14 if "var" in name else t, "its running_var moved"),
    "negative variances": (lambda name, t: -10 * t if "var" in name else t, "a variance is -"),
    "a variance a little below 0": (lambda name, t: t.clamp(max=-1e-5) if "var" in name else t, "a variance is -1e-05"),
    "infinite means": (lambda name, t: t / 0 if "mean" in name else t, "NaN or infinity"),
}


@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "multi_krum", *(pytest.param(own, marks=pytest.mark.slow) for own in ("krum", "median", "clipped"))],
)
@pytest.mark.parametrize("lie", STATISTICS)
def test_an_honest_change_with_false_running_statistics_is_left_out(lie: str, algorithm: str, tmp_path: Path) -> None:
    part, reason = STATISTICS[lie]

    def lying(content: RecordDict) -> RecordDict:
        own = content.array_records["buffers"].to_torch_state_dict()
        content["buffers"] = ArrayRecord(OrderedDict((name, part(name, tensor)) for name, tensor in own.items()))
        return content

    run = play(tmp_path, "train", lying, f"algorithm.name={algorithm}", "model.norm=batch")
    assert "evaluation" in run.rounds[-1]
    buffers = run.checkpoint().state.buffers
    assert all(float(tensor.abs().max()) < 1e3 for tensor in buffers.values())
    assert {entry["client"] for line in run.rounds for entry in line["left_out"]} == {LIAR}
    assert reason in reasons(run)
    assert all(LIAR not in line["answered"] for line in run.rounds)


def test_of_two_nodes_false_running_statistics_ruin_the_round_and_not_the_model(tmp_path: Path) -> None:
    """Nobody can say which of two is out of scale; the round changes nothing."""

    def lying(content: RecordDict) -> RecordDict:
        own = content.array_records["buffers"].to_torch_state_dict()
        own = OrderedDict((name, tensor + 1e14) for name, tensor in own.items())
        content["buffers"] = ArrayRecord(own)
        return content

    (tmp_path / "data").mkdir()
    config = config_of("fedavg", "model.norm=batch", count=2)
    (tmp_path / "run.toml").write_text(config.to_toml())

    def tamper(name: str, message: Message, content: RecordDict) -> RecordDict:
        own = (name, message.metadata.message_type, message.metadata.group_id)
        return lying(content) if own == (LIAR, "train", "2") else content

    nodes = handed_out(clients(2), tmp_path / "data")
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes, tamper=tamper), tmp_path / "run")
    (entry,) = run.rounds[1]["left_out"]
    assert run.rounds[1]["answered"] == []
    assert entry["client"] == "all"
    assert "the model's running statistics would be" in entry["reason"]
    assert all(float(tensor.abs().max()) < 1e3 for tensor in run.checkpoint().state.buffers.values())


def test_a_client_that_claims_many_examples_does_not_own_the_model(tmp_path: Path) -> None:
    """Five clients: the liar counts 10 / (10 + 4), not 0.9999998."""

    def lie(content: RecordDict) -> RecordDict:
        known = content.config_records["about"]
        return claiming(**{name: 10**9 for name in ("num_train", "num_examples") if name in known})(content)

    run = play(tmp_path, ("query.hello", "train"), lie)
    counted = {entry["client"]: entry["weight"] for entry in run.clients if "weight" in entry}
    assert counted[LIAR] == pytest.approx(10 / 14)
    assert sum(counted.values()) == pytest.approx(1)


def test_a_client_that_changes_its_size_later_is_left_out(tmp_path: Path) -> None:
    run = play(tmp_path, "train", claiming(num_examples=10**9))
    assert "by what the client said when it joined" in reasons(run)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([30, 1, 1, 1], [10 / 13, 1 / 13, 1 / 13, 1 / 13]),
        ([1e300, 3, 2, 1], [10 / 13, 3 / 13 / 2, 2 / 13 / 2, 1 / 13 / 2]),
        ([1, 0, 0, 0], [10 / 13, 1 / 13, 1 / 13, 1 / 13]),
        ([5], [5]),
        ([100, 1], [10 / 11, 1 / 11]),
    ],
)
def test_a_weight_has_a_limit_and_the_others_keep_their_proportions(
    weights: list[float], expected: list[float]
) -> None:
    """Four replies: at most 10 / 13 for one; weights within the limit are not touched."""
    given = torch.tensor(weights, dtype=torch.float64)
    cohort = Cohort(round=1, rounds=1, roster=(), uploads=(), draws={}, shared={}, lr=0.1)
    found, _ = MostWeight().weigh(given, cohort, {})
    assert found.tolist() == pytest.approx(expected)
    assert (found is given) == (weights == expected)


HELLOS: dict[str, tuple[dict[str, Any], str]] = {
    "10**14 examples": ({"num_train": 10**14}, "counts are out of range"),
    "an example of 4 TB": ({"shape": [10**6, 10**6]}, "at most 67,108,864 numbers"),
    "an example of nothing": ({"shape": [0]}, "at most 67,108,864 numbers"),
    "300,000 classes": ({"classes": [str(i) for i in range(300_000)]}, "at most 32,768 are possible"),
    "a class twice": ({"classes": ["a", "a"]}, "each once"),
    "a long name of a class": ({"classes": ["a" * 10_000, "b"]}, "10,000 characters"),
    "a scaling by zero": ({"kind": "image", "shape": [3, 8, 8], "mean": [0.0], "std": [0.0]}, "std cannot scale"),
    "no known kind": ({"kind": "odd"}, "of kind 'odd'"),
    "sums nested deeply": ({"sums": "[" * 100_000}, "cannot be read"),
}


@pytest.mark.parametrize("lie", HELLOS)
def test_a_node_that_claims_what_cannot_be_is_not_let_in(
    lie: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims, reason = HELLOS[lie]
    run = play(tmp_path, "query.hello", claiming(**claims), count=NODES - 1)
    assert LIAR not in [client["name"] for client in run.resolved["federation"]["clients"]]
    assert reason in capsys.readouterr().out
    assert is_whole(run)


@pytest.mark.parametrize("who", [LIAR, "client-0"])
def test_a_node_with_data_of_another_form_is_left_out(who: str, tmp_path: Path) -> None:
    """Also the first of the roster: most decide."""
    (tmp_path / "data").mkdir()
    config = config_of("fedavg", count=NODES)
    (tmp_path / "run.toml").write_text(config.to_toml())

    def tamper(name: str, message: Message, content: RecordDict) -> RecordDict:
        return (
            claiming(shape=[3])(content) if (name, message.metadata.message_type) == (who, "query.hello") else content
        )

    nodes = handed_out(clients(NODES), tmp_path / "data")
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes, tamper=tamper), tmp_path / "run")
    assert len(run.resolved["federation"]["clients"]) == NODES - 1
    assert who in (run.folder / "before.json").read_text()
    assert is_whole(run)


@pytest.mark.parametrize(("algorithm", "kind"), [("term", "train"), ("afl", "train"), ("qffl", "train")])
@pytest.mark.parametrize("loss", [1e6, 1e30])
def test_a_false_loss_is_left_out(algorithm: str, kind: str, loss: float, tmp_path: Path) -> None:
    def lie(content: RecordDict) -> RecordDict:
        note = next(name for name in content.array_records if name.startswith("note/"))
        return sending(note, lambda tensor: torch.full_like(tensor, loss))(content)

    run = play(tmp_path, kind, lie, f"algorithm.name={algorithm}")
    assert "the largest number taken is 10000" in reasons(run)
    assert is_whole(run)


def test_a_round_that_would_ruin_the_model_is_dropped_and_says_who_was_in_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    config = config_of("fedavg", count=3)
    (tmp_path / "run.toml").write_text(config.to_toml())

    def tamper(name: str, message: Message, content: RecordDict) -> RecordDict:
        lying = (message.metadata.message_type, message.metadata.group_id) == ("train", "2")
        return sending("change", lambda tensor: torch.full_like(tensor, 9e5))(content) if lying else content

    nodes = handed_out(clients(3), tmp_path / "data")
    run = serve(config, InProcessGrid(make_client_app(tmp_path / "run.toml"), nodes, tamper=tamper), tmp_path / "run")
    (entry,) = run.rounds[1]["left_out"]
    assert run.rounds[1]["answered"] == []
    assert entry["client"] == "all"
    assert (
        "times as long as before: the model stays as it is. In the round were client-0, client-1, client-2"
        in entry["reason"]
    )
    assert is_whole(run)


def _upload(*numbers: float) -> Upload:
    return Upload(client=0, num_examples=1, num_steps=1, change={"w": torch.tensor(numbers)}, buffers={})


def test_lengths_are_compared_with_the_median() -> None:
    """Lengths 5, 5, 13 and 1300: the median is 9, and 1300 / 9 is 144."""
    uploads = {"a": _upload(3, 4), "b": _upload(-4, 3), "c": _upload(5, 12), "d": _upload(500, 1200)}
    assert list(out_of_scale(uploads, 100)) == ["d"]
    assert "144 times as long" in out_of_scale(uploads, 100)["d"]
    assert out_of_scale(uploads, 150) == out_of_scale(uploads, None) == {}
    assert out_of_scale({"a": _upload(1.0), "b": _upload(1e5)}, 100) == {}  # nobody can say which of two
    assert out_of_scale({"a": _upload(0.0), "b": _upload(0.0), "c": _upload(1e5)}, 100) == {}


def _moved(**buffers: list[float]) -> Upload:
    own = {name.replace("__", "."): torch.tensor(values) for name, values in buffers.items()}
    return replace(_upload(1.0), buffers=own)


def test_moves_of_running_statistics_are_compared_by_kind() -> None:
    """All begin at mean 0 and variance 1; a median variance moves by 1e4, a median mean by 1, that of d by 101."""
    start = {"norm.running_mean": torch.tensor([0.0]), "norm.running_var": torch.tensor([1.0])}
    uploads = {name: _moved(norm__running_mean=[1.0], norm__running_var=[1e4]) for name in "abc"}
    uploads["d"] = _moved(norm__running_mean=[-101.0], norm__running_var=[1e4])
    received = dict.fromkeys(uploads, start)
    assert list(out_of_scale(uploads, 100, received)) == ["d"]
    assert "its running_mean moved 101 times as far" in out_of_scale(uploads, 100, received)["d"]
    assert out_of_scale(uploads, 102, received) == out_of_scale(uploads, None, received) == {}
    assert out_of_scale({name: uploads[name] for name in "ad"}, 100, received) == {}
    # A client of another group began elsewhere.
    assert out_of_scale(uploads, 100, received | {"d": {**start, "norm.running_mean": torch.tensor([-100.0])}}) == {}


def test_ruined_running_statistics_are_told_from_those_that_begin() -> None:
    """From length 1 to 2000 is allowed, 1000 * (1 + 1); to 2001 only if all clients have such data."""
    before = ServerState(round=0, shared={}, buffers={"v": torch.tensor([1.0])}, memory={})
    assert ruined(before, replace(before, buffers={"v": torch.tensor([2000.0])})) is None
    after = replace(before, buffers={"v": torch.tensor([2001.0])})
    assert "the model's running statistics would be 2,001 times as long as before" in str(ruined(before, after))
    assert ruined(before, after, [_moved(v=[1.0]), _moved(v=[1e9])]) is not None
    assert ruined(before, after, [_moved(v=[1500.0]), _moved(v=[2500.0])]) is None


def test_a_ruined_model_is_told_from_a_large_step() -> None:
    """From length 5 to 6000 is allowed, 1000 * (5 + 1); to 6001 is not."""
    before = ServerState(round=0, shared={"w": torch.tensor([3.0, 4.0])}, buffers={}, memory={})
    assert ruined(before, replace(before, shared={"w": torch.tensor([6000.0, 0.0])})) is None
    assert "1,200 times" in str(ruined(before, replace(before, shared={"w": torch.tensor([6001.0, 0.0])})))
    assert "w would hold NaN" in str(ruined(before, replace(before, shared={"w": torch.tensor([math.nan, 0.0])})))
    assert "b would hold NaN" in str(ruined(before, replace(before, buffers={"b": torch.tensor(math.inf)})))


def test_algorithms_that_count_all_clients_the_same_need_no_cap() -> None:
    assert capped_weights(krum(), 10.0) == krum()
    assert capped_weights(fedavg(), None) == fedavg()
    assert [link.name for link in capped_weights(fedavg(), 10.0).weighting] == ["examples", "most_weight"]
    for name in ("most_weight", "most_change"):
        with raises(UsageError, "out-of-range", name=f"flower.{name}"):
            NetworkSettings(**{name: 0.5})


def test_classes_of_all_nodes_together_are_bounded() -> None:
    form = DataForm.of(clients(1).data)
    many = replace(form, classes=tuple(f"a{i}" for i in range(MOST_CLASSES)))
    with raises(DataError, "out-of-range", name="classes"):
        many.unite(replace(form, classes=("b",)))

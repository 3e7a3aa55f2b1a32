"""The server's checks of a reply before it is used, one fault at a time."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedatlas.flower.protocol.checks import (
    check_arrays,
    check_losses,
    check_notes,
    check_score,
    check_size,
    check_upload,
)
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.protocol.expectations import Expectations
from fedatlas.flower.protocol.messages import BadReplyError, arrays, pack_losses, pack_score, pack_upload, plain
from fedatlas.flower.server.exchange import _read_hello
from fedatlas.parts import ClientLosses, ClientScore, Declared, Shape, Tensors, Upload, UpTo, make_metrics
from raising import raises

pytestmark = pytest.mark.attack("a node means harm")

SHARES = Declared(shapes={"histogram": {"shares": Shape(torch.float32, (3,))}}, senders={"histogram": "everyone"})
EXPECTED = Expectations(
    change={"w": Shape(torch.float32, (2,))},
    buffers={"mean": Shape(torch.float32, (2,))},
    notes=SHARES,
)
ANSWER = Upload(
    client=0,
    num_examples=7,
    num_steps=3,
    change={"w": torch.tensor([1.0, 2.0])},
    buffers={"mean": torch.tensor([0.5, 0.25])},
    notes={"histogram": {"shares": torch.tensor([0.5, 0.25, 0.25])}},
    metrics={"loss": 0.7},
    score=ClientScore(client=0, num_examples=4, values={"accuracy": 0.75, "loss": 0.6}),
)


def check(records: RecordDict) -> Upload:
    return check_upload(records, EXPECTED, client=5, num_examples=7, num_test=4)


def test_a_sound_reply_is_taken_as_it_is() -> None:
    found = check(pack_upload(ANSWER, remembers=True))
    assert (found.client, found.num_examples, found.num_steps) == (5, 7, 3)
    assert torch.equal(found.change["w"], ANSWER.change["w"])
    assert torch.equal(found.buffers["mean"], ANSWER.buffers["mean"])
    assert torch.equal(found.notes["histogram"]["shares"], ANSWER.notes["histogram"]["shares"])
    assert found.score is not None
    assert ANSWER.score is not None
    assert asdict(found.score) == asdict(replace(ANSWER.score, client=5))


def answer(**parts: Any) -> RecordDict:
    return pack_upload(replace(ANSWER, **parts), remembers=True)


def saying(**about: int | str) -> RecordDict:
    records = answer()
    records["about"] = ConfigRecord({**records.config_records["about"], **about})
    return records


def lacking(name: str) -> RecordDict:
    records = answer()
    del records[name]
    return records


def scored(num_examples: int, num_correct: int, loss: float = 0.6) -> RecordDict:
    values = {"accuracy": num_correct / max(num_examples, 1), "loss": loss}
    return answer(score=ClientScore(client=0, num_examples=num_examples, values=values))


def with_score(**values: float) -> RecordDict:
    records = answer()
    records["score"] = MetricRecord(values)
    return records


FAULTS: dict[str, tuple[Callable[[], RecordDict], str, dict[str, Any]]] = {
    "no change": (lambda: lacking("change"), "value-missing", {"name": "change"}),
    "a change without w": (lambda: answer(change={}), "value-missing", {"name": "w"}),
    "a change of v": (
        lambda: answer(change=ANSWER.change | {"v": torch.zeros(1)}),
        "unexpected-name",
        {"name": "v"},
    ),
    "no buffers": (lambda: lacking("buffers"), "value-missing", {"name": "buffers"}),
    "buffers without a mean": (lambda: answer(buffers={}), "value-missing", {"name": "mean"}),
    "infinite buffers": (
        lambda: answer(buffers={"mean": torch.tensor([1.0, torch.inf])}),
        "not-finite",
        {"name": "buffers mean"},
    ),
    "long buffers": (
        lambda: answer(buffers={"mean": torch.zeros(3)}),
        "wrong-shape",
        {"name": "buffers mean", "got": "float32 of shape (3)"},
    ),
    "double buffers": (
        lambda: answer(buffers={"mean": torch.zeros(2).double()}),
        "wrong-shape",
        {"name": "buffers mean", "got": "float64 of shape (2)"},
    ),
    "complex buffers": (
        lambda: answer(buffers={"mean": torch.zeros(2, dtype=torch.complex64)}),
        "wrong-type",
        {"name": "buffers mean", "got": "complex64"},
    ),
    "a note of another part": (
        lambda: answer(notes={"portrait": {"x": torch.zeros(1)}}),
        "unexpected-name",
        {"name": "portrait"},
    ),
    "a note with more": (
        lambda: answer(notes={"histogram": {"shares": torch.zeros(3), "more": torch.zeros(1)}}),
        "unexpected-name",
        {"name": "more"},
    ),
    "no note": (lambda: lacking("note/histogram"), "note-missing", {}),
    "minus one step": (lambda: saying(num_steps=-1), "wrong-value", {"name": "num_steps", "got": -1}),
    "many steps": (lambda: saying(num_steps="many"), "wrong-value", {"name": "num_steps", "got": "many"}),
    "another number of examples": (
        lambda: saying(num_examples=8),
        "wrong-count",
        {"name": "num_examples", "got": 8, "wanted": 7},
    ),
    "a loss of nan": (lambda: answer(metrics={"loss": float("nan")}), "not-finite", {"name": "loss"}),
    "no loss": (lambda: answer(metrics={}), "value-missing", {"name": "loss"}),
    "5 of 4 right": (lambda: scored(4, 5), "out-of-range", {"name": "accuracy", "got": 1.25}),
    "-1 of 4 right": (lambda: scored(4, -1), "out-of-range", {"name": "accuracy", "got": -0.25}),
    "9 test examples": (lambda: scored(9, 3), "wrong-count", {"name": "num_examples", "got": 9, "wanted": 4}),
    "an infinite test loss": (lambda: scored(4, 3, float("inf")), "not-finite", {"name": "test loss"}),
    "half a score": (lambda: with_score(num_examples=4), "value-missing", {"got": []}),
    "a score without a count": (
        lambda: with_score(**{"metric/accuracy": 0.5, "metric/loss": 1.0}),
        "reply-unreadable",
        {"record": "score"},
    ),
    "a metric that was not asked for": (
        lambda: with_score(**{"num_examples": 4, "metric/accuracy": 0.5, "metric/loss": 1.0, "metric/extra": 1.0}),
        "unknown-name",
        {"got": ["accuracy", "extra", "loss"]},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_with_one_fault_is_refused_for_it(fault: str) -> None:
    make, code, fields = FAULTS[fault]
    with raises(BadReplyError, code, **fields):
        check(make())


MEANS = Declared(
    shapes={"pool": {"inputs": Shape(torch.float32, (UpTo(3), 2)), "labels": Shape(torch.float32, (UpTo(3), None))}},
    senders={"pool": "training"},
)


def means(inputs: torch.Tensor | None, labels: torch.Tensor | None) -> RecordDict:
    said = {name: tensor for name, tensor in (("inputs", inputs), ("labels", labels)) if tensor is not None}
    return RecordDict({"note/pool": arrays(said)})


def test_an_axis_that_depends_on_the_data_has_a_bound_or_none() -> None:
    found = check_notes(means(torch.ones(3, 2), torch.ones(3, 9)), MEANS)
    assert found["pool"]["labels"].shape == (3, 9)
    with raises(BadReplyError, "wrong-shape", name="pool inputs", got="float32 of shape (4, 2)"):
        check_notes(means(torch.ones(4, 2), torch.ones(3, 9)), MEANS)
    with raises(BadReplyError, "wrong-shape", name="pool labels", got="float32 of shape (3)"):
        check_notes(means(torch.ones(3, 2), torch.ones(3)), MEANS)


def test_a_part_sends_all_that_it_declares_or_nothing_if_it_may() -> None:
    with raises(BadReplyError, "value-missing", name="labels"):
        check_notes(means(torch.ones(3, 2), None), MEANS, held_out=True)
    for silent in (RecordDict(), means(None, None)):
        with raises(BadReplyError, "note-missing"):
            check_notes(silent, MEANS)
        assert check_notes(silent, MEANS, held_out=True).get("pool", {}) == {}


def test_the_header_of_an_array_must_be_true() -> None:
    records = answer()
    record: ArrayRecord = records.array_records["change"]
    record["w"].data = arrays({"w": torch.zeros(9)})["w"].data
    with raises(BadReplyError, "header-mismatch", name="change w", got="float32 of shape (9)"):
        check(records)
    record["w"].data = arrays({"w": torch.zeros(2).double()})["w"].data
    with raises(BadReplyError, "header-mismatch", name="change w", got="float64 of shape (2)"):
        check(records)
    record["w"].data = b"no array"
    with raises(BadReplyError, "reply-unreadable", name="change w"):
        check(records)


def test_a_reply_may_be_four_times_as_large_as_the_message_and_some_more() -> None:
    records = RecordDict({"w": arrays({"w": torch.zeros(1000)})})
    size = check_size(records, 0)
    assert 4000 < size < 4400
    with raises(BadReplyError, "reply-too-large", limit=16_777_216):
        check_size(RecordDict({"w": arrays({"w": torch.zeros(1 << 22)})}), 0)
    check_size(RecordDict({"w": arrays({"w": torch.zeros(1 << 22)})}), 1000)


FORM = DataForm(kind="features", shape=(2,), classes=("a", "b"))
SUMS = {
    "columns": ["age"],
    "kinds": ["number"],
    "categories": [[]],
    "count": [7],
    "missing": [2],
    "total": [14.0],
    "squares": [30.0],
}
PREPARED = [{"name": "age", "kind": "number", "mean": 0.0, "std": 1.0, "categories": [], "indicator": False}]
WHO = {"name": "ward-7", "num_train": 9, "num_test": 3, "held_out": False, "domain": "", "position": -1}


@pytest.fixture
def _identity() -> None:
    """Set the ids that Flower's processes set; a message cannot be made without them."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def hello(**about: object) -> Message:
    sent = Message(content=RecordDict(), dst_node_id=1, message_type="query.hello")
    sent.metadata.__dict__["_message_id"] = "1"
    return Message(content=RecordDict({"about": plain(WHO | FORM.values() | about)}), reply_to=sent)


@pytest.mark.usefixtures("_identity")
def test_a_node_introduces_its_client() -> None:
    found = _read_hello(hello(domain="north", position=2, held_out=True))
    assert found.member == Member(name="ward-7", num_train=9, num_test=3, held_out=True, domain="north")
    assert (found.form, found.position) == (FORM, 2)
    table = _read_hello(hello(sums=json.dumps(SUMS))).form
    assert table.sums is not None
    assert table.sums.described() == SUMS
    plain_one = _read_hello(hello())
    assert (plain_one.member.domain, plain_one.position, plain_one.member.held_out) == (None, None, False)


@pytest.mark.usefixtures("_identity")
@pytest.mark.parametrize(
    ("about", "code", "fields"),
    [
        ({"name": "  "}, "client-name", {"got": "  "}),
        ({"name": "x" * 201}, "client-name", {"got": "x" * 201}),
        ({"name": "a\nb"}, "client-name", {"got": "a\nb"}),
        ({"num_train": 0}, "out-of-range", {"num_train": 0, "num_test": 3}),
        ({"num_test": -1}, "out-of-range", {"num_train": 9, "num_test": -1}),
        ({"shape": ["wide"]}, "reply-unreadable", {}),
        ({"sums": "{nonsense"}, "reply-unreadable", {}),
        ({"sums": json.dumps(SUMS | {"count": [10**30]})}, "reply-unreadable", {}),
        ({"sums": json.dumps(SUMS | {"count": [8]})}, "wrong-value", {"wanted": 9}),
        ({"sums": json.dumps(SUMS), "held_out": True}, "wrong-value", {"wanted": 0}),
        ({"preparation": json.dumps(PREPARED)}, "wrong-value", {"got": "preparation"}),
    ],
)
def test_a_node_with_a_wrong_introduction_is_refused(
    about: dict[str, object], code: str, fields: dict[str, object]
) -> None:
    with raises(BadReplyError, code, **fields):
        _read_hello(hello(**about))


def test_scores_surveys_and_single_records_are_checked_in_the_same_way() -> None:
    score = ClientScore(client=0, num_examples=4, values={"accuracy": 0.75, "loss": 0.6})
    taken = check_score(pack_score(score), 5, 4, EXPECTED)
    assert taken is not None
    assert asdict(taken) == asdict(replace(score, client=5))
    assert check_score(pack_score(None), 5, 0, EXPECTED) is None
    with raises(BadReplyError, "wrong-count", name="num_examples", got=4, wanted=3):
        check_score(pack_score(score), 5, 3, EXPECTED)
    shares = {"note/histogram": arrays({"shares": torch.ones(3)})}
    assert torch.equal(check_notes(RecordDict({**shares}), SHARES)["histogram"]["shares"], torch.ones(3))
    with raises(BadReplyError, "unexpected-name", name="change"):
        check_notes(RecordDict({**shares, "change": arrays({})}), SHARES)
    vector = {"vector": Shape(torch.float32, (2,))}
    assert torch.equal(
        check_arrays(RecordDict({"v": arrays({"vector": torch.ones(2)})}), "v", vector)["vector"], torch.ones(2)
    )
    with raises(BadReplyError, "wrong-shape", name="v vector", got="float64 of shape (2)"):
        check_arrays(RecordDict({"v": arrays({"vector": torch.ones(2).double()})}), "v", vector)


def test_metrics_by_class_and_intervals_come_back_in_their_form() -> None:
    """Two classes: the recalls as they are, NaN too, and the table of 2 x 2 counts from a flat list."""
    metrics = (*EXPECTED.metrics, *make_metrics(["recall_per_class", "confusion"]))
    expected = replace(EXPECTED, metrics=metrics, num_classes=2)
    values: dict[str, Any] = {"accuracy": 0.75, "loss": 0.6, "recall_per_class": [0.75, math.nan]}
    values["confusion"] = [[3, 1], [0, 0]]
    score = ClientScore(client=0, num_examples=4, values=values, intervals={"accuracy": (0.3, 0.95)})
    taken = check_score(pack_score(score), 0, 4, expected)
    assert taken is not None
    assert taken.values["confusion"] == [[3, 1], [0, 0]]
    assert str(taken.values["recall_per_class"]) == "[0.75, nan]"
    assert list(taken.values) == list(values)
    assert taken.intervals == {"accuracy": (0.3, 0.95)}
    with raises(BadReplyError, "reply-unreadable", record="metrics"):
        check_score(pack_score(replace(score, values={**values, "confusion": [[1]]})), 0, 4, expected)


PAIR: dict[str, Shape] = {
    "num_examples": Shape(torch.int64, ()),
    "means": Shape(torch.float64, (2,)),
    "squares": Shape(torch.float64, (2,)),
}
MEANS_OF_TWO = torch.tensor([2.0, 1.0], dtype=torch.float64)
SQUARES = torch.tensor([0.0, 5 / 3], dtype=torch.float64)
COMPARED: Tensors = {"num_examples": torch.tensor(3), "means": MEANS_OF_TWO, "squares": SQUARES}


def test_losses_are_taken_as_they_are_and_only_the_wanted_fields_are_sent() -> None:
    found = ClientLosses(3, MEANS_OF_TWO, SQUARES)
    count, means, squares = check_losses(pack_losses(found, list(PAIR)), PAIR, 3)
    assert (count, means.tolist(), squares.tolist()) == (3, MEANS_OF_TWO.tolist(), SQUARES.tolist())
    sent = pack_losses(found, ["means"])
    assert list(sent.array_records["losses"]) == ["means"]
    count, means, squares = check_losses(sent, {"means": PAIR["means"]}, 3)
    assert (count, means.tolist()) == (3, MEANS_OF_TWO.tolist())
    assert bool(squares.isnan().all())


WRONG_LOSSES: dict[str, tuple[Tensors, str, dict[str, Any]]] = {
    "another count": ({"num_examples": torch.tensor(4)}, "wrong-count", {"got": 4, "wanted": 3}),
    "a count in floats": ({"num_examples": torch.tensor(3.0)}, "wrong-shape", {"name": "losses num_examples"}),
    "a third model": ({"means": torch.ones(3, dtype=torch.float64)}, "wrong-shape", {"name": "losses means"}),
    "single precision": ({"means": torch.ones(2)}, "wrong-shape", {"name": "losses means"}),
    "a mean of nan": ({"means": MEANS_OF_TWO * torch.nan}, "not-finite", {"name": "losses means"}),
    "a negative loss": ({"means": -MEANS_OF_TWO}, "out-of-range", {"name": "means", "got": [-2.0, -1.0]}),
    "a huge loss": ({"means": MEANS_OF_TWO * 1e6}, "out-of-range", {"name": "means", "got": [2e6, 1e6]}),
    "squares below those of the means": ({"squares": SQUARES / 2}, "out-of-range", {"name": "squares"}),
    "a stranger": ({"names": torch.ones(2)}, "unexpected-name", {"name": "names"}),
}


@pytest.mark.parametrize("fault", WRONG_LOSSES)
def test_losses_with_one_fault_are_refused_for_it(fault: str) -> None:
    """The mean difference of (2, 1) is 1: a mean square of 5/6 is less than its square."""
    changed, code, fields = WRONG_LOSSES[fault]
    with raises(BadReplyError, code, **fields):
        check_losses(RecordDict({"losses": arrays(COMPARED | changed)}), PAIR, 3)


def test_losses_that_are_missing_are_refused() -> None:
    with raises(BadReplyError, "value-missing", name="losses"):
        check_losses(RecordDict(), PAIR, 3)
    with raises(BadReplyError, "value-missing", name="means"):
        check_losses(RecordDict({"losses": arrays({"num_examples": torch.tensor(3)})}), PAIR, 3)

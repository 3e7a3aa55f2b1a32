"""What the server looks at before it uses an answer, one thing wrong at a time."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedatlas.flower.protocol.checks import check_arrays, check_said, check_score, check_size, check_upload
from fedatlas.flower.protocol.data_form import DataForm, Member
from fedatlas.flower.protocol.expectations import Expectations
from fedatlas.flower.protocol.messages import BadReplyError, arrays, pack_score, pack_upload, plain
from fedatlas.flower.server.exchange import _read_hello
from fedatlas.parts.disclosure import Declared, Shape, UpTo
from fedatlas.parts.types import ClientScore, Upload

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
    score=ClientScore(client=0, num_examples=4, num_correct=3, loss=0.6),
)


def check(records: RecordDict) -> Upload:
    return check_upload(records, EXPECTED, client=5, num_examples=7, num_test=4)


def test_a_sound_answer_is_taken_as_it_is() -> None:
    found = check(pack_upload(ANSWER, remembers=True))
    assert (found.client, found.num_examples, found.num_steps) == (5, 7, 3)
    assert torch.equal(found.change["w"], ANSWER.change["w"])
    assert torch.equal(found.buffers["mean"], ANSWER.buffers["mean"])
    assert torch.equal(found.notes["histogram"]["shares"], ANSWER.notes["histogram"]["shares"])
    assert found.score is not None
    assert asdict(found.score) == asdict(ANSWER.score) | {"client": 5}


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
    return answer(score=ClientScore(client=0, num_examples=num_examples, num_correct=num_correct, loss=loss))


def with_score(**values: float) -> RecordDict:
    records = answer()
    records["score"] = MetricRecord(values)
    return records


FAULTS: dict[str, Callable[[], RecordDict]] = {
    "it has no arrays 'change'": lambda: lacking("change"),
    "change: 'w' is missing": lambda: answer(change={}),
    "change: 'v' is unknown": lambda: answer(change=ANSWER.change | {"v": torch.zeros(1)}),
    "it has no arrays 'buffers'": lambda: lacking("buffers"),
    "buffers: 'mean' is missing": lambda: answer(buffers={}),
    "buffers mean: NaN or infinity in 1 of 2 entries": lambda: answer(buffers={"mean": torch.tensor([1.0, torch.inf])}),
    "buffers mean: float32 of shape (3,), wanted float32 of shape (2)": lambda: answer(
        buffers={"mean": torch.zeros(3)}
    ),
    "'portrait' is not a part that says something here": lambda: answer(notes={"portrait": {"x": torch.zeros(1)}}),
    "histogram: 'more' is unknown": lambda: answer(
        notes={"histogram": {"shares": torch.zeros(3), "more": torch.zeros(1)}}
    ),
    "histogram did not say 'shares'": lambda: lacking("note/histogram"),
    "num_steps is -1": lambda: saying(num_steps=-1),
    "num_steps is 'many'": lambda: saying(num_steps="many"),
    "it claims 8 examples, and said 7 at first": lambda: saying(num_examples=8),
    "a finite loss is wanted": lambda: answer(metrics={"loss": float("nan")}),
    "its metrics are {}": lambda: answer(metrics={}),
    "it scored 5 of 4": lambda: scored(4, 5),
    "it scored -1 of 4": lambda: scored(4, -1),
    "it scored 3 of 9, and said it has 4": lambda: scored(9, 3),
    "its test loss is inf": lambda: scored(4, 3, float("inf")),
    "its score cannot be read": lambda: with_score(num_correct=3),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_an_answer_with_one_thing_wrong_is_refused_for_it(reason: str) -> None:
    with pytest.raises(BadReplyError) as caught:
        check(FAULTS[reason]())
    assert reason in str(caught.value)


MEANS = Declared(
    shapes={"pool": {"inputs": Shape(torch.float32, (UpTo(3), 2)), "labels": Shape(torch.float32, (UpTo(3), None))}},
    senders={"pool": "training"},
)


def means(inputs: torch.Tensor | None, labels: torch.Tensor | None) -> RecordDict:
    said = {name: tensor for name, tensor in (("inputs", inputs), ("labels", labels)) if tensor is not None}
    return RecordDict({"note/pool": arrays(said)})


def test_an_axis_that_depends_on_the_data_has_a_bound_or_none() -> None:
    found = check_said(means(torch.ones(3, 2), torch.ones(3, 9)), MEANS)
    assert found["pool"]["labels"].shape == (3, 9)
    with pytest.raises(BadReplyError, match=r"pool inputs: float32 of shape \(4, 2\), wanted .* \(up to 3, 2\)"):
        check_said(means(torch.ones(4, 2), torch.ones(3, 9)), MEANS)
    with pytest.raises(BadReplyError, match=r"pool labels: float32 of shape \(3\), wanted .* \(up to 3, any\)"):
        check_said(means(torch.ones(3, 2), torch.ones(3)), MEANS)


def test_a_part_says_all_that_it_declares_or_nothing_and_that_only_where_it_may() -> None:
    with pytest.raises(BadReplyError, match="pool did not say 'labels'"):
        check_said(means(torch.ones(3, 2), None), MEANS, held_out=True)
    for silent in (RecordDict(), means(None, None)):
        with pytest.raises(BadReplyError, match="pool did not say 'inputs'"):
            check_said(silent, MEANS)
        assert check_said(silent, MEANS, held_out=True).get("pool", {}) == {}


def test_what_an_array_says_of_itself_must_be_true() -> None:
    records = answer()
    record: ArrayRecord = records.array_records["change"]
    record["w"].data = arrays({"w": torch.zeros(9)})["w"].data
    with pytest.raises(BadReplyError, match=r"change w: it is torch.float32 of \(9,\), which is not what it says"):
        check(records)
    record["w"].data = arrays({"w": torch.zeros(2).double()})["w"].data
    with pytest.raises(BadReplyError, match=r"change w: it is torch.float64 of \(2,\), which is not what it says"):
        check(records)
    record["w"].data = b"no array"
    with pytest.raises(BadReplyError, match="change w: cannot be read as an array"):
        check(records)


def test_an_answer_may_be_four_times_what_was_sent_and_some_more() -> None:
    records = RecordDict({"w": arrays({"w": torch.zeros(1000)})})
    size = check_size(records, 0)
    assert 4000 < size < 4400
    with pytest.raises(BadReplyError, match="16,777,216 are the most that this message allows"):
        check_size(RecordDict({"w": arrays({"w": torch.zeros(1 << 22)})}), 0)
    check_size(RecordDict({"w": arrays({"w": torch.zeros(1 << 22)})}), 1000)


FORM = DataForm(kind="features", shape=(2,), classes=("a", "b"))
WHO = {"name": "ward-7", "num_train": 9, "num_test": 3, "held_out": False, "domain": "", "position": -1}


@pytest.fixture
def _identity() -> None:
    """Set what Flower's own processes set, without which no message can be made."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


def hello(**about: object) -> Message:
    sent = Message(content=RecordDict(), dst_node_id=1, message_type="query.hello")
    sent.metadata.__dict__["_message_id"] = "1"
    return Message(content=RecordDict({"about": plain(WHO | FORM.values() | about)}), reply_to=sent)


@pytest.mark.usefixtures("_identity")
def test_a_node_says_who_its_client_is() -> None:
    found = _read_hello(hello(domain="north", position=2, held_out=True))
    assert found.member == Member(name="ward-7", num_train=9, num_test=3, held_out=True, domain="north")
    assert (found.form, found.position) == (FORM, 2)
    plain_one = _read_hello(hello())
    assert (plain_one.member.domain, plain_one.position, plain_one.member.held_out) == (None, None, False)


@pytest.mark.usefixtures("_identity")
@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"name": "  "}, "is no name for a client"),
        ({"name": "x" * 201}, "is no name for a client"),
        ({"name": "a\nb"}, "is no name for a client"),
        ({"num_train": 0}, "it says it has 0 examples to train on and 3 for test"),
        ({"num_test": -1}, "it says it has 9 examples to train on and -1 for test"),
        ({"shape": ["wide"]}, "what it says of itself cannot be read"),
    ],
)
def test_a_node_that_says_nonsense_of_itself_is_refused(about: dict[str, object], reason: str) -> None:
    with pytest.raises(BadReplyError, match=reason):
        _read_hello(hello(**about))


def test_scores_surveys_and_single_records_are_looked_at_in_the_same_way() -> None:
    score = ClientScore(client=0, num_examples=4, num_correct=3, loss=0.6)
    taken = check_score(pack_score(score), 5, 4)
    assert taken is not None
    assert asdict(taken) == asdict(score) | {"client": 5}
    assert check_score(pack_score(None), 5, 0) is None
    with pytest.raises(BadReplyError, match="it scored 3 of 4, and said it has 3"):
        check_score(pack_score(score), 5, 3)
    shares = {"note/histogram": arrays({"shares": torch.ones(3)})}
    assert torch.equal(check_said(RecordDict({**shares}), SHARES)["histogram"]["shares"], torch.ones(3))
    with pytest.raises(BadReplyError, match="a record 'change' that nobody asked for"):
        check_said(RecordDict({**shares, "change": arrays({})}), SHARES)
    vector = {"vector": Shape(torch.float32, (2,))}
    assert torch.equal(
        check_arrays(RecordDict({"v": arrays({"vector": torch.ones(2)})}), "v", vector)["vector"], torch.ones(2)
    )
    with pytest.raises(BadReplyError, match="v vector: float64"):
        check_arrays(RecordDict({"v": arrays({"vector": torch.ones(2).double()})}), "v", vector)

"""Messages as they travel: a record's tensors as one array, and back to the same bits."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedatlas.flower.protocol.checks import check_arrays
from fedatlas.flower.protocol.messages import BadReplyError, Packing, tensors
from fedatlas.flower.protocol.wire import FOLDED, folded, unfolded
from fedatlas.parts import Shape
from fedatlas.testing import travelled
from raising import raises
from tiny import same_bits

MODEL = {f"layer.{i}": torch.arange(6, dtype=torch.float32).reshape(2, 3) + i for i in range(10)}


def _content() -> RecordDict:
    counter = ArrayRecord(OrderedDict(count=torch.tensor(3), flag=torch.tensor(True), half=torch.zeros(2).half()))
    return RecordDict(
        {
            "shared": Packing().arrays(MODEL),
            "buffers": ArrayRecord(),
            "one": ArrayRecord(OrderedDict(only=torch.ones(2))),
            "note/part": counter,
            "about": ConfigRecord({"round": 1}),
            "metrics": MetricRecord({"loss": 0.5}),
        }
    )


def test_what_was_folded_arrives_to_the_bit_and_in_order() -> None:
    sent = _content()
    found = unfolded(travelled(folded(sent)))
    assert list(found) == list(sent)
    for name, record in sent.array_records.items():
        assert list(found.array_records[name]) == list(record)
        assert same_bits(tensors(found.array_records[name]), tensors(record))
        for title, array in record.items():
            other = found.array_records[name][title]
            assert (other.dtype, other.shape, other.stype) == (array.dtype, array.shape, array.stype)
    assert found.config_records["about"] == sent.config_records["about"]
    assert found.metric_records["metrics"] == sent.metric_records["metrics"]


def test_content_that_was_never_folded_stays_as_it_is() -> None:
    sent = _content()
    assert unfolded(sent).array_records == sent.array_records


def test_a_record_travels_as_one_array_and_equal_ones_once() -> None:
    """Ten tensors are twenty objects and the record; folded, the record, its array and one chunk: 3 for 21."""
    record, packing = Packing().arrays(MODEL), Packing()
    assert len(get_all_nested_objects(record)) == 21
    assert len(get_all_nested_objects(folded(RecordDict({"shared": record}))["shared"])) == 3
    known: dict[tuple[tuple[str, int], ...], ArrayRecord] = {}
    first, second = (folded(RecordDict({"shared": packing.arrays(MODEL)}), known) for _ in range(2))
    assert first["shared"] is second["shared"]


@pytest.mark.parametrize(
    "content", [np.frombuffer(b"\xff" * 20, np.uint8), np.zeros(3, np.float32), np.zeros((2, 2), np.uint8)]
)
def test_bytes_that_are_no_tensors_are_refused(content: np.ndarray) -> None:
    record = ArrayRecord({FOLDED: Array(content)})
    with pytest.raises(ValueError, match="folded tensors"):
        unfolded(RecordDict({"change": record}))


def test_a_record_within_a_record_is_not_opened_and_not_taken() -> None:
    inner = folded(RecordDict({"losses": Packing().arrays(MODEL)}))["losses"]
    assert isinstance(inner, ArrayRecord)
    twice = RecordDict({"losses": ArrayRecord({FOLDED: inner[FOLDED], "other": inner[FOLDED]})})
    with raises(BadReplyError, "unexpected-name"):
        check_arrays(unfolded(folded(twice)), "losses", {"means": Shape(torch.float64, (2,))})

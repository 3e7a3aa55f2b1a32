"""The content of Flower's messages: named arrays and plain values, never pickle.

An assignment is sent as the records ``shared``, ``buffers``, ``note/PART`` and ``about``. The reply holds ``change``,
``buffers``, ``note/PART``, ``metrics`` and ``about``. Models whose losses are asked for are sent as ``shared/0``,
``buffers/0``, ``shared/1``, ...; the reply holds ``losses``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedatlas.errors import FedatlasError
from fedatlas.parts.metric import Metric
from fedatlas.parts.types import Assignment, Candidate, ClientLosses, ClientScore, Memory, Tensors, Upload, Value

SHARED, BUFFERS, CHANGE, NOTE, ABOUT, METRICS = "shared", "buffers", "change", "note", "about", "metrics"
SCORE, LOSSES, TESTED = "score", "losses", "tested"


class BadReplyError(FedatlasError):
    """A reply cannot be used; the run's record gives the message as the reason."""


def arrays(tensors: Tensors) -> ArrayRecord:
    """Return tensors as one record, in their order."""
    return ArrayRecord(OrderedDict((name, tensor.detach().cpu()) for name, tensor in tensors.items()))


class Packing:
    """Packs a tensor once, whatever the number of messages that it goes into.

    Tensors may not change in place once they are packed.
    """

    def __init__(self) -> None:
        self._packed: MutableMapping[Tensor, Array] = WeakTensorKeyDictionary()

    def arrays(self, tensors: Tensors) -> ArrayRecord:
        """Return tensors as one record, in their order."""
        record = ArrayRecord()
        for name, tensor in tensors.items():
            if tensor not in self._packed:
                self._packed[tensor] = Array(torch_tensor=tensor)
            record[name] = self._packed[tensor]
        return record

    def candidates(self, candidates: Sequence[Candidate]) -> dict[str, ArrayRecord]:
        """Return models as records; after the first one, a record holds only what differs from the first."""
        first = candidates[0]
        records = {f"{SHARED}/0": self.arrays(first.shared), f"{BUFFERS}/0": self.arrays(first.buffers)}
        for number, own in enumerate(candidates[1:], 1):
            records[f"{SHARED}/{number}"] = self.arrays(_other(own.shared, first.shared))
            records[f"{BUFFERS}/{number}"] = self.arrays(_other(own.buffers, first.buffers))
        return records


def _other(own: Tensors, first: Tensors) -> Tensors:
    return {name: tensor for name, tensor in own.items() if tensor is not first.get(name)}


def unpack_candidates(records: RecordDict) -> list[Candidate]:
    """Return the models whose losses are asked for."""
    shared, buffers = unpack_memory(SHARED, records), unpack_memory(BUFFERS, records)
    return [
        Candidate({**shared["0"], **shared[str(i)]}, {**buffers["0"], **buffers[str(i)]}, branch)
        for i, branch in enumerate(values(records, ABOUT)["branches"])
    ]


def pack_losses(found: ClientLosses, wanted: Sequence[str]) -> RecordDict:
    """Return a client's losses as records, with no other fields than the wanted ones."""
    return RecordDict({LOSSES: arrays({name: torch.as_tensor(getattr(found, name)) for name in wanted})})


def tensors(record: ArrayRecord) -> Tensors:
    """Return the tensors of a record, in its order."""
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def plain(values: Mapping[str, Any]) -> ConfigRecord:
    """Return plain values as one record."""
    return ConfigRecord(dict(values))


def values(records: RecordDict, name: str) -> dict[str, Any]:
    """Return the plain values of a record; an empty dict if the record is missing."""
    if name in records.metric_records:
        return dict(records.metric_records[name])
    return dict(records.config_records.get(name, {}))


def pack_memory(prefix: str, memory: Memory) -> dict[str, ArrayRecord]:
    """Return one record for each part, named ``prefix/PART``."""
    return {f"{prefix}/{part}": arrays(own) for part, own in memory.items()}


def unpack_memory(prefix: str, records: RecordDict) -> Memory:
    """Return the memory that ``pack_memory`` packed under the prefix."""
    start = f"{prefix}/"
    found = ((name, record) for name, record in records.array_records.items() if name.startswith(start))
    return {name.removeprefix(start): tensors(record) for name, record in found}


FLAGS = ("test_own", "holds_back", "restarts", "forgets")
"""What an assignment says by yes or no."""


def pack_assignment(
    assignment: Assignment, about: Mapping[str, Any], shared: ArrayRecord, buffers: ArrayRecord
) -> RecordDict:
    """Return an assignment as records; the model's records are packed already, once for all clients that get it."""
    own = {name: getattr(assignment, name) for name in ("round", "rounds", "turn", "branch", *FLAGS)}
    return RecordDict(
        {
            SHARED: shared,
            BUFFERS: buffers,
            **pack_memory(NOTE, assignment.notes),
            ABOUT: plain({**own, **about}),
        }
    )


def unpack_assignment(records: RecordDict) -> Assignment:
    """Return the assignment that a client received; it is client 0 of a federation of one."""
    about = values(records, ABOUT)
    return Assignment(
        round=int(about["round"]),
        rounds=int(about["rounds"]),
        turn=int(about["turn"]),
        branch=about["branch"],
        client=0,
        shared=tensors(records.array_records[SHARED]),
        buffers=tensors(records.array_records[BUFFERS]),
        notes=unpack_memory(NOTE, records),
        **{name: bool(about[name]) for name in FLAGS},
    )


def pack_upload(upload: Upload, *, remembers: bool) -> RecordDict:
    """Return a client's upload as records; ``remembers`` says whether the client kept a memory of the round."""
    about = {"num_examples": upload.num_examples, "num_steps": upload.num_steps, "remembers": remembers}
    return RecordDict(
        {
            CHANGE: arrays(upload.change),
            BUFFERS: arrays(upload.buffers),
            **pack_memory(NOTE, upload.notes),
            METRICS: MetricRecord(dict(upload.metrics)),
            **({} if upload.score is None else {SCORE: _score_record(upload.score)}),
            ABOUT: plain(about),
        }
    )


def unpack_upload(records: RecordDict, client: int, score: ClientScore | None = None) -> Upload:
    """Return a reply as the upload of a client; ``client`` is its id on the server, ``score`` that of its model."""
    about = values(records, ABOUT)
    return Upload(
        client=client,
        num_examples=int(about["num_examples"]),
        num_steps=int(about["num_steps"]),
        change=tensors(records.array_records[CHANGE]),
        buffers=tensors(records.array_records[BUFFERS]),
        notes=unpack_memory(NOTE, records),
        metrics={name: float(value) for name, value in values(records, METRICS).items()},
        score=score,
    )


METRIC, INTERVAL = "metric/", "interval/"
"""Before the names of metrics in a score, and of their intervals."""


def pack_score(score: ClientScore | None, name: str = METRICS) -> RecordDict:
    """Return a client's score as records; None stands for a client without test examples."""
    return RecordDict({name: MetricRecord({"num_examples": 0}) if score is None else _score_record(score)})


def _score_record(score: ClientScore) -> MetricRecord:
    values = {f"{METRIC}{name}": _flat(value) for name, value in score.values.items()}
    spans = {f"{INTERVAL}{name}": [float(end) for end in ends] for name, ends in score.intervals.items()}
    return MetricRecord({"num_examples": score.num_examples, **values, **spans})


def _flat(value: Value) -> float | list[float]:
    """Return a number, or all numbers of lists one after another."""
    return [float(one) for one in np.ravel(value)] if isinstance(value, list) else float(value)


def unpack_score(
    records: RecordDict, client: int, metrics: Sequence[Metric], num_classes: int, name: str = METRICS
) -> ClientScore | None:
    """Return the score that a client sent, its metrics in this order."""
    found = values(records, name)
    if not int(found["num_examples"]):
        return None
    spans = {one.name: found[key] for one in metrics if (key := f"{INTERVAL}{one.name}") in found}
    return ClientScore(
        client=client,
        num_examples=int(found["num_examples"]),
        values={one.name: _shaped(found[f"{METRIC}{one.name}"], one.axes, num_classes) for one in metrics},
        intervals={title: (float(low), float(high)) for title, (low, high) in spans.items()},
    )


def _shaped(value: Any, axes: int, num_classes: int) -> Value:
    if not axes:
        return float(value)
    shaped: Value = np.asarray(value, dtype=float).reshape((num_classes,) * axes).tolist()
    return shaped


def num_bytes(records: RecordDict) -> int:
    """Return the size of a message in bytes: its names and values, without Flower's envelope."""
    total = sum(len(name) for name in records)
    total += sum(record.count_bytes() for record in records.array_records.values())
    for name in (*records.config_records, *records.metric_records):
        total += sum(len(title) + _size(value) for title, value in values(records, name).items())
    return total


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 8

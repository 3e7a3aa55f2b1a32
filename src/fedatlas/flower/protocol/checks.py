"""Is an answer fit to be used? Names, types, shapes, sizes and finite values, before it touches the model."""

from __future__ import annotations

import math
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict

from fedatlas.flower.protocol.expectations import Expectations
from fedatlas.flower.protocol.messages import (
    ABOUT,
    BUFFERS,
    CHANGE,
    METRICS,
    NOTE,
    SCORE,
    BadReplyError,
    num_bytes,
    tensors,
    unpack_memory,
    unpack_score,
    unpack_upload,
    values,
)
from fedatlas.parts.disclosure import Declared, Shape, Shapes
from fedatlas.parts.types import ClientScore, Memory, Tensors, Upload

SLACK = 1 << 24
"""Bytes that any answer may hold, whatever the model's size: a part may send a few images' worth."""
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
}


def check_size(records: RecordDict, sent: int) -> int:
    """Return an answer's size in bytes; refuse one out of all proportion to what was sent to the client."""
    size, limit = num_bytes(records), 4 * sent + SLACK
    if size > limit:
        raise BadReplyError(
            f"{size:,} bytes, where {limit:,} are the most that this message allows",
            code="bad-reply",
            got=size,
            wanted=limit,
        )
    return size


def check_upload(records: RecordDict, expected: Expectations, client: int, num_examples: int, num_test: int) -> Upload:
    """Return the upload that an answer holds."""
    _only(records, {CHANGE, BUFFERS, METRICS, SCORE, ABOUT}, NOTE)
    about, metrics = values(records, ABOUT), values(records, METRICS)
    _tensors("change", _arrays(records, CHANGE), expected.change)
    _tensors("buffers", _arrays(records, BUFFERS), expected.buffers)
    for title in ("num_examples", "num_steps"):
        if not isinstance(about.get(title), int) or not 0 <= int(about[title]) < 1 << 62:
            raise BadReplyError(f"{title} is {about.get(title)!r}", code="bad-reply")
    _notes(records, expected.notes, held_out=False, stepped=about["num_steps"] > 0)
    if about["num_examples"] != num_examples:
        raise BadReplyError(
            f"it claims {about['num_examples']} examples, and said {num_examples} at first",
            code="bad-reply",
            got=about["num_examples"],
            wanted=num_examples,
        )
    if "loss" not in metrics or not all(math.isfinite(float(value)) for value in metrics.values()):
        raise BadReplyError(f"its metrics are {metrics}; a finite loss is wanted", code="bad-reply")
    if SCORE in records:
        _score(records, SCORE, client, num_test)
    return unpack_upload(records, client)


def check_said(records: RecordDict, expected: Declared, *, held_out: bool = False) -> Memory:
    """Return a client's answer to a survey, or its introduction."""
    _only(records, {ABOUT}, NOTE)
    _notes(records, expected, held_out=held_out, stepped=False)
    return unpack_memory(NOTE, records)


def check_score(records: RecordDict, client: int, num_test: int) -> ClientScore | None:
    """Return the score that an answer holds."""
    _only(records, {METRICS})
    return _score(records, METRICS, client, num_test)


def _score(records: RecordDict, name: str, client: int, num_test: int) -> ClientScore | None:
    try:
        score = unpack_score(records, client, name)
    except (KeyError, TypeError, ValueError) as error:
        raise BadReplyError(f"its score cannot be read: {error!r}", code="bad-reply") from error
    if score is None:
        return None
    if score.num_examples != num_test or not 0 <= score.num_correct <= score.num_examples:
        raise BadReplyError(
            f"it scored {score.num_correct} of {score.num_examples}, and said it has {num_test}",
            code="bad-reply",
            got=score.num_examples,
            wanted=num_test,
        )
    if not math.isfinite(score.loss):
        raise BadReplyError(f"its test loss is {score.loss}", code="bad-reply", got=score.loss)
    return score


def check_arrays(records: RecordDict, name: str, expected: Shapes) -> Tensors:
    """Return the tensors of an answer that holds one record of arrays."""
    _only(records, {name})
    record = _arrays(records, name)
    _tensors(name, record, expected)
    return tensors(record)


def _only(records: RecordDict, names: set[str], prefix: str | None = None) -> None:
    strange = [name for name in records if name not in names and not (prefix and name.startswith(f"{prefix}/"))]
    if strange:
        raise BadReplyError(f"it holds a record {strange[0]!r} that nobody asked for", code="bad-reply")


def _arrays(records: RecordDict, name: str) -> ArrayRecord:
    if name not in records.array_records:
        raise BadReplyError(f"it has no arrays {name!r}", code="bad-reply")
    return records.array_records[name]


def _notes(records: RecordDict, expected: Declared, *, held_out: bool, stepped: bool) -> None:
    found = set()
    for name, record in records.array_records.items():
        part = name.removeprefix(f"{NOTE}/")
        if part == name or not record:
            continue
        # By the arrays' own words, so that nothing large is read in vain.
        said = {title: (_dtype(f"{part} {title}", a), tuple(a.shape)) for title, a in record.items()}
        if fault := expected.fault_in_part(part, said):
            raise BadReplyError(fault, code="bad-reply", part=part)
        _tensors(part, record, expected.shapes[part])
        found.add(part)
    if fault := expected.missing_part(found, held_out=held_out, stepped=stepped):
        raise BadReplyError(fault, code="bad-reply")


def _tensors(title: str, record: ArrayRecord, expected: Shapes) -> None:
    if strange := sorted(set(record) ^ set(expected)):
        raise BadReplyError(
            f"{title}: {strange[0]!r} is {'unknown' if strange[0] in record else 'missing'}", code="bad-reply"
        )
    for name, array in record.items():
        _tensor(f"{title} {name}", array, expected[name])


def _tensor(what: str, array: Any, expected: Shape) -> None:
    # First by what the array says of itself, so that nothing large is read in vain; then by what it is.
    dtype = _dtype(what, array)
    if not expected.fits(dtype, tuple(array.shape)):
        raise BadReplyError(f"{what}: {array.dtype} of shape {tuple(array.shape)}, wanted {expected}", code="bad-reply")
    try:
        tensor = torch.from_numpy(array.numpy())
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise BadReplyError(f"{what}: cannot be read as an array ({error})", code="bad-reply") from error
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(array.shape):
        raise BadReplyError(
            f"{what}: it is {tensor.dtype} of {tuple(tensor.shape)}, which is not what it says", code="bad-reply"
        )
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise BadReplyError(
            f"{what}: NaN or infinity in {int((~tensor.isfinite()).sum())} of {tensor.numel()} entries",
            code="bad-reply",
        )


def _dtype(what: str, array: Any) -> torch.dtype:
    if array.dtype not in _DTYPES:
        raise BadReplyError(f"{what}: {array.dtype!r} is not a known type of numbers", code="bad-reply")
    return _DTYPES[array.dtype]

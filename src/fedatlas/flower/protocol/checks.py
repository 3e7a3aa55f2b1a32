"""Checks of replies before they touch the model: names, types, shapes, sizes and finite values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict

from fedatlas.flower.protocol.expectations import Expectations
from fedatlas.flower.protocol.messages import (
    ABOUT,
    BUFFERS,
    CHANGE,
    INTERVAL,
    LOSSES,
    METRIC,
    METRICS,
    NOTE,
    SCORE,
    TESTED,
    BadReplyError,
    num_bytes,
    tensors,
    unpack_memory,
    unpack_score,
    unpack_upload,
    values,
)
from fedatlas.parts.disclosure import Declared, Shape, Shapes
from fedatlas.parts.types import ClientLosses, ClientScore, Memory, Tensors, Upload

SLACK = 1 << 24
"""Bytes that any reply may hold, whatever the model's size: a part may send a few images' worth."""
MOST_LOSS = 1e6
"""The largest mean loss that a client may state: one client's loss should not outweigh all others."""
MOST_SURVEYED = 1e4
"""The largest number in a reply to a survey, and in a note that is one number, such as a loss."""
MOST_CHANGED, MOST_NOTED = 1e6, 1e15
"""The largest number in a change of parameters, and in other tensors, which may count or sum something."""
VARIANCE = "running_var"
"""What PyTorch's normalisation layers call the buffer."""
ROUNDED = 1e-6
"""The server's mean of variances near 0 may be so much below it; a layer adds more before it takes the root."""
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
}


def check_size(records: RecordDict, sent: int) -> int:
    """Return a reply's size in bytes; raise BadReplyError if it is far larger than the message to the client."""
    size, limit = num_bytes(records), 4 * sent + SLACK
    if size > limit:
        raise BadReplyError(
            f"the reply has {size:,} bytes; the limit is {limit:,}", code="reply-too-large", got=size, limit=limit
        )
    return size


def check_upload(records: RecordDict, expected: Expectations, client: int, num_examples: int, num_test: int) -> Upload:
    """Return the upload in a reply; ``num_examples`` are those that the client was to train on."""
    _check_names(records, {CHANGE, BUFFERS, METRICS, SCORE, TESTED, ABOUT}, NOTE)
    about = values(records, ABOUT)
    _check_tensors(CHANGE, _arrays(records, CHANGE), expected.change)
    _check_tensors(BUFFERS, _arrays(records, BUFFERS), expected.buffers)
    _check_variances(tensors(records.array_records[BUFFERS]))
    for name in ("num_examples", "num_steps"):
        count = about.get(name)
        if not isinstance(count, int) or not 0 <= count < 1 << 62:
            raise BadReplyError(f"{name} must be a count, got {count!r}", code="wrong-value", name=name, got=count)
    _check_notes(records, expected.notes, held_out=False, stepped=about["num_steps"] > 0)
    if about["num_examples"] != num_examples:
        raise BadReplyError(
            f"num_examples is {about['num_examples']}, wanted {num_examples} by what the client said when it joined",
            code="wrong-count",
            name="num_examples",
            got=about["num_examples"],
            wanted=num_examples,
        )
    _check_metrics(values(records, METRICS))
    score = _check_score(records, SCORE, client, num_test, expected) if SCORE in records else None
    return unpack_upload(records, client, score)


def check_notes(records: RecordDict, expected: Declared, *, held_out: bool = False) -> Memory:
    """Return the notes of a client's parts: its reply to a survey, or its introduction."""
    _check_names(records, {ABOUT}, NOTE)
    _check_notes(records, expected, held_out=held_out, stepped=False)
    return unpack_memory(NOTE, records)


def check_survey(records: RecordDict, expected: Declared) -> Memory:
    """Return a client's reply to a survey, which decides how much clients count: its numbers are bounded closely."""
    found = check_notes(records, expected)
    for part, own in found.items():
        for name, tensor in own.items():
            _check_range(f"{part} {name}", tensor, MOST_SURVEYED)
    return found


def check_score(records: RecordDict, client: int, num_test: int, expected: Expectations) -> ClientScore | None:
    """Return the score in a reply, with the values of all metrics."""
    _check_names(records, {METRICS})
    return _check_score(records, METRICS, client, num_test, expected)


def check_tested(records: RecordDict, client: int, num_test: int, expected: Expectations) -> ClientScore | None:
    """Return the score of the received model in the reply to a training message; None without test examples."""
    if TESTED not in records:
        raise BadReplyError("the score of the received model is missing", code="value-missing", name=TESTED)
    return _check_score(records, TESTED, client, num_test, expected)


def check_losses(records: RecordDict, expected: Shapes, num_examples: int) -> ClientLosses:
    """Return a client's losses under several models; a field that is not expected is NaN, or known before."""
    found = check_arrays(records, LOSSES, expected)
    count = int(found.get("num_examples", num_examples))
    if count != num_examples:
        raise BadReplyError(
            f"the losses are those of {count} examples, wanted {num_examples}",
            code="wrong-count",
            name="num_examples",
            got=count,
            wanted=num_examples,
        )
    means = found["means"]
    squares = found.get("squares", torch.full_like(means, torch.nan))
    least = (means - means[0]).square()  # the mean of squares is not below the square of the mean
    sound = (squares >= least * (1 - 1e-6) - 1e-12) & (squares <= MOST_LOSS**2)
    for name, fits in (("means", (means >= 0) & (means <= MOST_LOSS)), ("squares", sound)):
        if name in found and not bool(fits.all()):
            got = found[name].tolist()
            raise BadReplyError(f"{name} of losses out of range: {got}", code="out-of-range", name=name, got=got)
    return ClientLosses(num_examples, means, squares)


def check_arrays(records: RecordDict, name: str, expected: Shapes) -> Tensors:
    """Return the tensors of a reply that holds one record of arrays."""
    _check_names(records, {name})
    record = _arrays(records, name)
    _check_tensors(name, record, expected)
    return tensors(record)


def _check_metrics(metrics: Mapping[str, Any]) -> None:
    if "loss" not in metrics:
        raise BadReplyError("the training loss is missing", code="value-missing", name="loss")
    for name, value in metrics.items():
        if not math.isfinite(float(value)):
            raise BadReplyError(f"metric {name} is {value}, not finite", code="not-finite", name=name)


def _check_score(
    records: RecordDict, name: str, client: int, num_test: int, expected: Expectations
) -> ClientScore | None:
    held = values(records, name)
    names = {one.name for one in expected.metrics}
    _check_metric_names({key.removeprefix(METRIC) for key in held if key.startswith(METRIC)}, names, held)
    try:
        score = unpack_score(records, client, expected.metrics, expected.num_classes, name)
    except (KeyError, TypeError, ValueError) as error:
        raise BadReplyError(f"the score cannot be read: {error!r}", code="reply-unreadable", record=name) from error
    if score is None:
        return None
    if score.num_examples != num_test:
        raise BadReplyError(
            f"the score is that of {score.num_examples} test examples, but the client has {num_test}",
            code="wrong-count",
            name="num_examples",
            got=score.num_examples,
            wanted=num_test,
        )
    if not math.isfinite(score.loss):
        raise BadReplyError(f"the test loss is {score.loss}, not finite", code="not-finite", name="test loss")
    if "accuracy" in score.values and not 0 <= score.accuracy <= 1:
        raise BadReplyError(
            f"the accuracy must be in [0, 1], got {score.accuracy}",
            code="out-of-range",
            name="accuracy",
            got=score.accuracy,
        )
    return score


def _check_metric_names(found: set[str], wanted: set[str], held: Mapping[str, Any]) -> None:
    """Raise BadReplyError if a score lacks a metric, or holds what was not asked for."""
    if held.get("num_examples") == 0:
        return
    strange = {key for key in held if key != "num_examples" and not key.startswith((METRIC, INTERVAL))}
    spans = {key.removeprefix(INTERVAL) for key in held if key.startswith(INTERVAL)}
    if found != wanted or strange or spans - wanted:
        got = sorted({*found, *strange, *spans})
        raise BadReplyError(
            f"the score has the metrics {got}, wanted {sorted(wanted)}",
            code="value-missing" if wanted - found else "unknown-name",
            got=got,
        )


def _check_names(records: RecordDict, names: set[str], prefix: str | None = None) -> None:
    """Raise BadReplyError if a record is neither one of these names nor a note."""
    strange = [name for name in records if name not in names and not (prefix and name.startswith(f"{prefix}/"))]
    if strange:
        raise BadReplyError(f"unexpected record {strange[0]!r}", code="unexpected-name", name=strange[0])


def _arrays(records: RecordDict, name: str) -> ArrayRecord:
    if name not in records.array_records:
        raise BadReplyError(f"record {name!r} is missing", code="value-missing", name=name)
    return records.array_records[name]


def _check_notes(records: RecordDict, expected: Declared, *, held_out: bool, stepped: bool) -> None:
    found = set()
    for name, record in records.array_records.items():
        part = name.removeprefix(f"{NOTE}/")
        if part == name or not record:
            continue
        if part not in expected.shapes:
            raise BadReplyError(f"unexpected note of part {part!r}", code="unexpected-name", name=part)
        _check_tensors(part, record, expected.shapes[part])
        found.add(part)
    if fault := expected.missing_part(found, held_out=held_out, stepped=stepped):
        raise BadReplyError(fault, code="note-missing")


def _check_range(name: str, tensor: torch.Tensor, most: float) -> None:
    if tensor.is_floating_point() and tensor.numel() and not float(tensor.abs().max()) <= most:
        got = float(tensor.abs().max())
        raise BadReplyError(
            f"{name}: it holds {got:.3g}, the largest number taken is {most:g}",
            code="out-of-range",
            name=name,
            got=got,
        )


def _check_variances(buffers: Tensors) -> None:
    """Raise BadReplyError if a running variance is below 0 by more than rounding leaves: its root would be NaN."""
    for name, tensor in buffers.items():
        if name.rpartition(".")[2] == VARIANCE and tensor.numel() and not float(tensor.min()) >= -ROUNDED:
            got = float(tensor.min())
            raise BadReplyError(
                f"{BUFFERS} {name}: a variance is {got:.3g}, wanted 0 or more", code="out-of-range", name=name, got=got
            )


def _check_tensors(title: str, record: ArrayRecord, expected: Shapes) -> None:
    for name in sorted(set(record) ^ set(expected)):
        if name in record:
            raise BadReplyError(f"{title}: unexpected tensor {name!r}", code="unexpected-name", name=name)
        raise BadReplyError(f"{title}: tensor {name!r} is missing", code="value-missing", name=name)
    # Headers come first: no content is read if a type or a shape is wrong.
    for name, array in record.items():
        _check_header(f"{title} {name}", array, expected[name])
    for name, array in record.items():
        _check_content(f"{title} {name}", array)


def _check_header(name: str, array: Any, expected: Shape) -> None:
    """Check the type and the shape that an array states."""
    if array.dtype not in _DTYPES:
        raise BadReplyError(f"{name}: unknown type {array.dtype!r}", code="wrong-type", name=name, got=array.dtype)
    shape = tuple(array.shape)
    if not expected.fits(_DTYPES[array.dtype], shape):
        got = str(Shape(_DTYPES[array.dtype], shape))
        raise BadReplyError(f"{name}: got {got}, wanted {expected}", code="wrong-shape", name=name, got=got)


def _check_content(name: str, array: Any) -> None:
    """Check that an array can be read, agrees with its header, and holds finite numbers only."""
    try:
        tensor = torch.from_numpy(array.numpy())
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise BadReplyError(f"{name}: not an array ({error})", code="reply-unreadable", name=name) from error
    got, stated = str(Shape(tensor.dtype, tuple(tensor.shape))), str(Shape(_DTYPES[array.dtype], tuple(array.shape)))
    if got != stated:
        raise BadReplyError(
            f"{name}: its header states {stated}, its content is {got}", code="header-mismatch", name=name, got=got
        )
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        count = int((~tensor.isfinite()).sum())
        raise BadReplyError(
            f"{name}: NaN or infinity in {count} of {tensor.numel()} entries", code="not-finite", name=name
        )
    title = name.partition(" ")[0]
    single = tensor.ndim == 0 and title not in (BUFFERS, LOSSES)
    _check_range(name, tensor, MOST_CHANGED if title == CHANGE else MOST_SURVEYED if single else MOST_NOTED)

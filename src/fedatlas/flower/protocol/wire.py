"""Messages as they travel: all tensors of a record as one array of bytes.

Flower keeps every array of a message as objects of their own, and at each of six places between server and client a
request brings one of them. A model of ten tensors is some twenty of them, and their requests took most of a round's
time. Folded, a record is one array, and equal records of several messages are still kept once. Nothing else changes:
what arrives is unfolded before it is read or checked.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.common.serde import array_record_from_proto, array_record_to_proto
from flwr.proto.recorddict_pb2 import ArrayRecord as ArrayRecordProto

FOLDED = "folded/tensors"
"""The name of the one array of a folded record; no tensor has a slash in its name."""
Known = MutableMapping[tuple[tuple[str, int], ...], ArrayRecord]
"""Folded records by the names and identities of their arrays, so that equal ones are folded once."""


def folded(records: RecordDict, known: Known | None = None) -> RecordDict:
    """Return a message's content with each record of several arrays as one array."""
    known = {} if known is None else known
    found = RecordDict()
    for name, record in records.items():
        if not isinstance(record, ArrayRecord) or len(record) < 2:
            found[name] = record
            continue
        key = tuple((title, id(array)) for title, array in record.items())
        if key not in known:
            content = array_record_to_proto(record).SerializeToString()
            known[key] = ArrayRecord({FOLDED: Array(np.frombuffer(content, np.uint8))})
        found[name] = known[key]
    return found


def unfolded(records: RecordDict) -> RecordDict:
    """Return the content that ``folded`` folded, or content that was never folded; raise ValueError if it is neither.

    Its arrays are headers and bytes, which nobody has read yet.
    """
    found = RecordDict()
    for name, record in records.items():
        found[name] = _opened(record[FOLDED]) if isinstance(record, ArrayRecord) and [*record] == [FOLDED] else record
    return found


def _opened(array: Array) -> ArrayRecord:
    content = array.numpy()
    if content.dtype != np.uint8 or content.ndim != 1:
        raise ValueError(f"folded tensors must be bytes, got {content.dtype} of shape {content.shape}")
    try:
        return array_record_from_proto(ArrayRecordProto.FromString(content.tobytes()))
    except Exception as error:  # protobuf's own kind of error, which has no type hints
        raise ValueError(f"folded tensors cannot be read ({type(error).__name__})") from error

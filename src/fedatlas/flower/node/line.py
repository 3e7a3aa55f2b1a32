"""The line between a node's process for a message and the node's worker: bytes over a Unix socket.

It is light: neither torch nor the engine is imported.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from flwr.app import Context, Message, RecordDict
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto

SOCKET = "FEDATLAS_NODE_WORKER"
"""The environment variable that names the worker's socket."""
ANSWERED, FAILED, UNABLE = b"answered", b"failed", b"unable"
_MOST = 2**31
"""Bytes of a part of a message; Flower's own limit."""


class NodeError(Exception):
    """A failure on a node, in words that the server may read."""


def is_own(path: Path) -> bool:
    """Return whether a path is a socket of this user, in a folder that nobody else can enter."""
    try:
        found, around = path.lstat(), path.parent.lstat()
    except OSError:
        return False
    closed = stat.S_IMODE(around.st_mode) & 0o077 == 0
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == around.st_uid == os.getuid() and closed


def packed(message: Message, context: Context) -> list[bytes]:
    """Return a message and a context as bytes."""
    return [message_to_proto(message).SerializeToString(), context_to_proto(context).SerializeToString()]


def unpacked(message: bytes, context: bytes) -> tuple[Message, Context]:
    """Return the message and the context that ``packed`` packed."""
    return message_from_proto(MessageProto.FromString(message)), context_from_proto(ContextProto.FromString(context))


def bytes_of(records: RecordDict) -> bytes:
    """Return records as bytes."""
    content: bytes = recorddict_to_proto(records).SerializeToString()
    return content


def records_of(content: bytes) -> RecordDict:
    """Return the records that ``bytes_of`` packed."""
    return recorddict_from_proto(RecordDictProto.FromString(content))


def send(line: socket.socket, parts: Sequence[bytes]) -> None:
    """Send parts, each after its length."""
    line.sendall(struct.pack("<B", len(parts)))
    for part in parts:
        line.sendall(struct.pack("<Q", len(part)))
        line.sendall(part)


def receive(line: socket.socket) -> list[bytes]:
    """Return the parts that ``send`` sent; raise EOFError if the other side went away."""
    with line.makefile("rb") as stream:
        return [_exactly(stream, _length(stream)) for _ in range(_exactly(stream, 1)[0])]


def _length(stream: IO[bytes]) -> int:
    (length,) = struct.unpack("<Q", _exactly(stream, 8))
    if length > _MOST:
        raise ValueError(f"a part of {length} bytes is too large")
    return int(length)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise EOFError
    return content

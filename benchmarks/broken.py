"""Files that are broken on purpose, for the reproductions of defects and for tests."""

from __future__ import annotations

import io
import zipfile


def corrupt_stream(content: bytes) -> bytes:
    """Return an archive with bytes in its members that are no stream of zlib, under a directory that is whole."""
    changed = bytearray(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            start = member.header_offset + 50 + len(member.filename)
            changed[start : start + member.compress_size - 25] = b"\xff" * (member.compress_size - 25)
    return bytes(changed)

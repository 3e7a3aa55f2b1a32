"""The manifest of a run: which files belong to it, and how long each is, with a checksum.

It is replaced in one step. A record (``rounds.jsonl`` and the others) only grows, so the manifest claims its beginning:
the bytes up to the last checkpoint, and the checksum of these. Of every other file it claims the whole content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedatlas.errors import RunFolderError
from fedatlas.runs.files import Entry, atomic_write, damaged, digest
from fedatlas.runs.lock import lock_folder

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
FORMAT = 3
READABLE = (2, FORMAT)
"""A manifest of format 2, which fedatlas 0.1.0 wrote, claims the lengths of records only."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CHUNK = 2**20
DIFFERS = "its checksum differs from the run's manifest"


@dataclass(frozen=True)
class Claim:
    """How long a file is, or the beginning of it, and the checksum of that."""

    bytes: int
    sha256: str | None
    """None is unknown."""


def claim_of(content: bytes) -> Claim:
    """Return the claim of a content."""
    return Claim(len(content), digest(content))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What belongs to a run."""

    round: int = 0
    """How many rounds the checkpoint has seen."""
    groups: int = 0
    server: Entry | None = None
    """The server's state; None before the first checkpoint."""
    clients: Entry | None = None
    """The journal of the clients' memory."""
    records: Mapping[str, Claim] = field(default_factory=dict)
    files: Mapping[str, Claim] = field(default_factory=dict)
    """The other files of the run's folder."""
    coming: Mapping[str, Claim] = field(default_factory=dict)
    """Files that are about to be replaced: what they hold then."""

    def write(self, folder: Path) -> None:
        """Replace the manifest in a folder of checkpoints."""
        body = {"format": FORMAT, **asdict(self)}
        manifest = {"sha256": digest(json.dumps(body, sort_keys=True).encode()), **body}
        atomic_write(folder / MANIFEST, json.dumps(manifest, indent=1).encode())

    def check(self, name: str, content: bytes, path: Path) -> None:
        """Raise RunFolderError if one of the run's files holds something else than the manifest claims."""
        if (claims := self._claims_of(name)) and claim_of(content) not in claims:
            raise altered(path, DIFFERS)

    def check_files(self, folder: Path) -> None:
        """Raise RunFolderError if one of the files in a run's folder was deleted or altered."""
        for name in self.files:
            path = folder / name
            try:
                with path.open("rb") as file:  # not read whole: it may be large
                    found = Claim(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
            except OSError as error:
                raise altered(path, _why(error)) from error
            if found not in self._claims_of(name):
                raise altered(path, DIFFERS)

    def _claims_of(self, name: str) -> list[Claim]:
        return [claims[name] for claims in (self.files, self.coming) if name in claims]

    def check_record(self, name: str, path: Path) -> Any:
        """Return the running checksum of a record's beginning; raise RunFolderError if that was altered."""
        claim, running = self.records.get(name, Claim(0, None)), hashlib.sha256()
        left = claim.bytes
        try:
            with path.open("rb") as file:
                while left and (chunk := file.read(min(left, _CHUNK))):
                    running.update(chunk)
                    left -= len(chunk)
        except FileNotFoundError as error:
            if left:
                raise altered(path, _why(error)) from error
        except OSError as error:
            raise altered(path, _why(error)) from error
        if left:
            raise altered(path, f"it was cut short ({claim.bytes - left} bytes in place of {claim.bytes})")
        if claim.sha256 is not None and running.hexdigest() != claim.sha256:
            raise altered(path, DIFFERS)
        return running


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a folder of checkpoints; raise RunFolderError if it is missing or was altered."""
    path = folder / MANIFEST
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        claimed = found.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise damaged(path, "it is not a whole manifest") from error
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{path} is missing: it was deleted, or a version before 0.2 was stopped before its first checkpoint. "
            "Restore it from a copy, or start the run again with --overwrite.",
            code="manifest-missing",
            path=str(path),
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}.", code="file-unreadable", path=str(path)
        ) from error
    if claimed != digest(json.dumps(found, sort_keys=True).encode()):
        raise damaged(path, "its checksum differs")
    if found.get("format") not in READABLE:
        raise damaged(path, "another version of fedatlas wrote it")
    try:
        return _parsed(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise damaged(path, f"an entry is missing or wrong ({error})") from error


def announce(folder: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
    """Write files of a run and return the manifest with them; a kill at any moment leaves files that it claims."""
    claims = {name: claim_of(content) for name, content in contents.items()}
    if any(manifest.files.get(name) != claim for name, claim in claims.items()):
        replace(manifest, coming=claims).write(folder / CHECKPOINTS)
    for name, content in contents.items():
        atomic_write(folder / name, content)
    return replace(manifest, files={**manifest.files, **claims}, coming={})


def add_file(folder: Path, name: str, content: bytes) -> None:
    """Write a file of a run that ended; one that a running run knows nothing of is written without a claim."""
    try:
        lock = lock_folder(folder)
    except RunFolderError:
        atomic_write(folder / name, content)
        return
    try:
        announce(folder, read_manifest(folder / CHECKPOINTS), {name: content}).write(folder / CHECKPOINTS)
    finally:
        if lock is not None:
            lock.close()


def altered(path: Path, why: str) -> RunFolderError:
    """Return the error for a record or another file of a run that is not as the run left it."""
    return RunFolderError(
        f"{path} cannot be trusted: {why}. Restore it from a copy, or start the run again with --overwrite.",
        code="file-altered",
        path=str(path),
    )


def plain_name(name: object) -> str:
    """Return the name of a file in its folder; raise ValueError if it would lead out of that."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a file's name")
    return name


def parsed_entry(value: Mapping[str, Any]) -> Entry:
    """Return the entry of a file, checked."""
    return Entry(plain_name(value["file"]), _size(value["bytes"]), str(value["sha256"]))


def _parsed(found: Mapping[str, Any]) -> Manifest:
    records = found["records"]
    if found["format"] != FORMAT:
        records = {name: {"bytes": size, "sha256": None} for name, size in records.items()}
    return Manifest(
        round=_size(found["round"]),
        groups=_size(found.get("groups", 0)),
        server=None if found["server"] is None else parsed_entry(found["server"]),
        clients=None if found["clients"] is None else parsed_entry(found["clients"]),
        records=_claims(records),
        files=_claims(found.get("files", {})),
        coming=_claims(found.get("coming", {})),
    )


def _claims(found: Mapping[str, Any]) -> dict[str, Claim]:
    return {plain_name(name): Claim(_size(own["bytes"]), own["sha256"]) for name, own in found.items()}


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


def _why(error: OSError) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else f"it is unreadable ({error.strerror})"

"""An atlas on disk: one safetensors file with the vectors, the names, the provenance and a checksum of all of them."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedatlas.errors import DataError
from fedatlas.runs.files import atomic_write

_FORM = "fedatlas.atlas/1"


def write_vectors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> None:
    """Write tensors and plain values as one file, whole or not at all."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    text = json.dumps(words, sort_keys=True)
    content = save_tensors(whole, {"form": _FORM, "words": text, "sha256": _digest(whole, text)})
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, content)


def read_vectors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the plain values of a file, refusing one that was cut short or altered."""
    if not Path(path).is_file():
        raise DataError(
            f"there is no atlas at {path}. Make one there: `fedatlas map --to FILE`, or atlas.save(path).",
            code="file-missing",
            path=str(path),
        )
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            # Cloned: a tensor inside the mapped file would change with it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise unusable(path, f"it is not a whole safetensors file ({error})") from error
    if notes.get("form") != _FORM:
        raise unusable(
            path, f"it is not an atlas of the form {_FORM!r} (its form is {notes.get('form')!r})", "content-unfit"
        )
    if notes.get("sha256") != _digest(tensors, notes.get("words", "")):
        raise unusable(path, "it was altered (its checksum differs)", "file-altered")
    try:
        words = json.loads(notes["words"])
    except (KeyError, ValueError, RecursionError) as error:
        raise unusable(path, "what it says about its vectors cannot be read", "content-unfit") from error
    if not isinstance(words, dict):
        raise unusable(path, "what it says about its vectors is not a table", "content-unfit")
    return tensors, words


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def unusable(path: str | os.PathLike[str], why: str, code: str = "file-unreadable") -> DataError:
    """Return the error for a file that cannot be used."""
    return DataError(
        f"the atlas {path} cannot be used: {why}. Restore it from a copy, or make it again.",
        code=code,
        path=str(path),
    )

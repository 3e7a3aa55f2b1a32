"""A folder that remembers embeddings by content, so that the same examples are encoded once."""

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedatlas.data.cache import CACHE_VARIABLE, cache_folder
from fedatlas.errors import DataError
from fedatlas.runs.files import replacing


def cache_file(key: str) -> Path:
    """Return the file that belongs to a key."""
    return cache_folder() / "embeddings" / f"{key}.safetensors"


def content_key(words: Sequence[Any], tensors: Iterable[Tensor]) -> str:
    """Return a hash of plain values and of the bytes of tensors, in order."""
    digest = hashlib.blake2b(json.dumps(words).encode(), digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def write_tensors(file: Path, tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
    """Write a safetensors file whole or not at all, also when several processes write the same one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(file, shared=True) as partial:
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial, dict(words))
    except SafetensorError as reason:
        raise OSError(f"cannot write {file}: {reason}") from reason


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the words of a safetensors file."""
    try:
        with safe_open(file, framework="pt") as opened:
            # Cloned: a tensor inside the mapped file would change with it.
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            return tensors, dict(opened.metadata() or {})
    except (OSError, SafetensorError) as reason:
        raise DataError(
            f"{file}: cannot be read as a safetensors file ({reason}). Write it again.",
            code="file-unreadable",
            path=str(file),
        ) from reason


def warn_unwritten(file: Path, reason: OSError) -> None:
    """Warn that the cache cannot be used; the computed vectors are still valid."""
    warnings.warn(
        f"the embeddings could not be kept in {file.parent} ({reason}), and will be computed again next time. "
        f"Set {CACHE_VARIABLE} to a folder that can be written.",
        stacklevel=3,
    )

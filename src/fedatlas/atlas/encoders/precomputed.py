"""Vectors made elsewhere: one file with a vector for each example of the data set and one for each class."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.atlas.encoders.base import Embeddings
from fedatlas.atlas.encoders.cache import read_tensors
from fedatlas.atlas.encoders.inputs import training_examples
from fedatlas.atlas.encoders.registry import encoder
from fedatlas.data.federation import Federation
from fedatlas.data.loading.npz import read_npz
from fedatlas.errors import DataError, UsageError

ENDINGS = (".npz", ".safetensors")


@encoder("precomputed")
@dataclass(frozen=True, kw_only=True)
class Precomputed:
    """Your vectors from a file (.npz or .safetensors) with examples (N, D) and classes (C, L)."""

    name: ClassVar[str] = "precomputed"

    path: str | Path
    """The file; ``Embeddings.save`` writes one."""
    normalize: bool = False
    """Give every vector the length 1."""

    def encode(self, federation: Federation, *, progress: bool | None = None) -> Embeddings:
        """Return the file's vectors, those of examples that no client trains on as zeros; on the examples' device."""
        file = Path(self.path).expanduser()
        examples, classes = self._read(file)
        data = federation.data
        self._check(file, "examples", examples, len(data), f"{data.name} holds {len(data)} examples")
        self._check(file, "classes", classes, len(data.classes), f"{data.name} has {len(data.classes)} classes")
        unseen = torch.ones(len(data), 1, dtype=torch.bool)
        unseen[training_examples(federation).cpu()] = False
        found = Embeddings(
            encoder=f"precomputed {file.name} ({_digest(file)})",
            examples=examples.float().masked_fill(unseen, 0),
            classes=classes.float(),
        ).to(data.inputs.device)
        return found.normalized() if self.normalize else found

    def _read(self, file: Path) -> tuple[Tensor, Tensor]:
        if file.suffix not in ENDINGS:
            raise UsageError(
                f"{file}: precomputed embeddings must be a file that ends in {' or '.join(ENDINGS)}.",
                code="file-ending",
                path=str(file),
            )
        if not file.is_file():
            raise UsageError(
                f"{file}: there is no such file of precomputed embeddings. Check the path.",
                code="file-missing",
                path=str(file),
            )
        if file.suffix == ".npz":
            arrays = {key: array for key, array in read_npz(file).items() if array.dtype.kind in "fiu"}
            tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
        else:
            tensors, _ = read_tensors(file)
        missing = next((key for key in ("examples", "classes") if key not in tensors), None)
        if missing is not None:
            raise DataError(
                f"{file}: has no {missing!r} but {sorted(tensors)}. Give examples (N, D) and classes (C, L).",
                code="content-unfit",
                path=str(file),
                missing=missing,
                got=sorted(tensors),
            )
        return tensors["examples"], tensors["classes"]

    def _check(self, file: Path, title: str, rows: Tensor, count: int, wanted: str) -> None:
        if rows.ndim != 2 or len(rows) != count or not rows.is_floating_point():
            raise DataError(
                f"{file}: {title} is {rows.dtype} of shape {tuple(rows.shape)}, but {wanted}. "
                "Give one row of floats each, in the data set's order.",
                code="wrong-shape",
                path=str(file),
                what=title,
                got=rows.dtype,
                shape=tuple(rows.shape),
            )


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:8]

"""The output of an encoder for a data set: one vector per example, one per class.

An encoder is any object with a name and ``encode``. Most encoders only define the vectors of a batch of examples and of
the classes. ``BatchEncoder`` does the rest: it reads each client's training examples as the client sees them, in
batches, and encodes the same content once.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.atlas.encoders.cache import cache_file, content_key, read_tensors, warn_unwritten, write_tensors
from fedatlas.atlas.encoders.inputs import shown_batches, training_examples
from fedatlas.client.machine import keep_freed_memory
from fedatlas.data.dataset import Dataset, all_finite
from fedatlas.data.federation import Federation
from fedatlas.errors import DataError, UsageError
from fedatlas.training.progress import make_progress

BATCH, SMALL_BATCH = 256, 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Embeddings:
    """The output of an encoder for a data set: one vector per example, one per class."""

    encoder: str
    """The encoder's name and the version or a hash of its weights."""
    examples: Tensor
    """float32 (N, D), not normalised; rows of examples that no client trains on are zero."""
    classes: Tensor
    """float32 (C, L): the text, or the code, of each class."""

    def __post_init__(self) -> None:
        for title, rows in (("examples", self.examples), ("classes", self.classes)):
            if rows.ndim != 2 or rows.dtype != torch.float32:
                raise DataError(
                    f"embeddings of {self.encoder}: {title} must be float32 of two axes, "
                    f"got {rows.dtype} of shape {tuple(rows.shape)}.",
                    code="wrong-shape",
                    got=rows.dtype,
                    what=title,
                )
            if not all_finite(rows):
                where = int((~rows.isfinite()).any(1).nonzero()[0])
                raise DataError(
                    f"embeddings of {self.encoder}: {title} hold NaN or infinity, first in row {where}.",
                    code="not-finite",
                    what=title,
                    row=where,
                )

    def to(self, device: torch.device | str) -> "Embeddings":
        """Return the embeddings on a device."""
        return replace(self, examples=self.examples.to(device), classes=self.classes.to(device))

    def normalized(self) -> "Embeddings":
        """Return the embeddings with rows of length 1; rows of zeros stay."""
        return replace(self, examples=F.normalize(self.examples, dim=1), classes=F.normalize(self.classes, dim=1))

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, which the encoder ``precomputed`` reads."""
        file = Path(path)
        if file.suffix != ".safetensors":
            raise UsageError(
                f"{file}: embeddings are written as .safetensors, got {file.suffix!r}. Change the ending.",
                code="file-ending",
                path=str(file),
                got=file.suffix,
            )
        write_tensors(file, {"examples": self.examples, "classes": self.classes}, {"encoder": self.encoder})


class Encoder(Protocol):
    """Turns the examples and the classes of a federation into vectors."""

    @property
    def name(self) -> str:
        """The encoder's name."""
        ...

    def encode(self, federation: Federation, *, progress: bool | None = None) -> Embeddings:
        """Return a vector for every training example of every client, and for every class."""
        ...


@dataclass(frozen=True, kw_only=True)
class BatchEncoder(ABC):
    """An encoder that looks at batches of examples, one after another."""

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]] = ("image", "tokens")
    """The kinds of inputs that it reads."""

    normalize: bool = False
    """Give every vector the length 1. DSA-IGN's reconstruction is inert on such short vectors, so off by default."""
    device: str | None = None
    """Where to compute; by default where the examples are."""
    cache: bool = True
    """Keep the result in the cache folder, by content."""

    @abstractmethod
    def identity(self) -> str:
        """Return the values that determine this encoder's vectors: name, options that matter, weights."""

    @abstractmethod
    def embed(self, data: Dataset, inputs: Tensor) -> Tensor:
        """Return one vector for each input: an image (uint8, or floats near [0, 1]), a row of tokens or features."""

    @abstractmethod
    def embed_classes(self, data: Dataset) -> Tensor:
        """Return one vector for each class."""

    @torch.no_grad()
    def encode(self, federation: Federation, *, progress: bool | None = None) -> Embeddings:
        """Return the embeddings, from the cache where this content was encoded before; on the examples' device."""
        data = federation.data
        if data.kind not in self.kinds:
            raise UsageError(
                f"encoder {self.name!r} reads {' and '.join(self.kinds)}, {data.name} holds {data.kind}. "
                "Use 'builtin', or give your vectors with 'precomputed'.",
                code="kind-mismatch",
                encoder=self.name,
                got=data.kind,
            )
        file = self._cache_file(federation) if self.cache else None
        found = None if file is None else self._read(file, data)
        if found is None:
            found = self._compute(federation, progress)
            if file is not None:
                try:
                    found.save(file)
                except OSError as reason:
                    warn_unwritten(file, reason)
        found = found.to(data.inputs.device)
        return found.normalized() if self.normalize else found

    def _compute(self, federation: Federation, progress: bool | None) -> Embeddings:
        data = federation.data
        keep_freed_memory(torch.device(self.device or data.inputs.device))
        total = len(training_examples(federation))
        classes = self.embed_classes(data).float().cpu()
        examples, done = torch.zeros(len(data), 0), 0
        with make_progress(progress, f"encode {self.name}", total) as bar:
            for indices, inputs in shown_batches(federation, BATCH):
                # Products with a few rows add up in another order, and a client's vectors must not depend on who was
                # encoded with it: a small batch is padded with its examples.
                shown = inputs if len(inputs) >= SMALL_BATCH else inputs[torch.arange(SMALL_BATCH) % len(inputs)]
                vectors = self.embed(data, shown if self.device is None else shown.to(self.device))[: len(inputs)]
                if done == 0:
                    examples = torch.zeros(len(data), vectors.shape[1])
                examples[indices.cpu()] = vectors.float().cpu()
                done += len(indices)
                bar.advance(min(done, total), {})
        return Embeddings(encoder=self.identity(), examples=examples, classes=classes)

    def _cache_file(self, federation: Federation) -> Path:
        data = federation.data
        seen = (part for batch in shown_batches(federation, BATCH) for part in batch)
        return cache_file(content_key([self.identity(), data.classes, data.vocabulary, len(data)], seen))

    def _read(self, file: Path, data: Dataset) -> Embeddings | None:
        """Return the cached embeddings, if the file is complete and fits."""
        try:
            tensors, words = read_tensors(file)
            found = from_tensors(tensors, words)
        except (DataError, KeyError):
            return None
        fits = len(found.examples) == len(data) and len(found.classes) == len(data.classes)
        return found if fits and found.encoder == self.identity() else None


def from_tensors(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> Embeddings:
    """Return the embeddings that a file holds."""
    return Embeddings(encoder=words["encoder"], examples=tensors["examples"], classes=tensors["classes"])

"""Federations with known shifts, drawn from a pool of images that is encoded once for each look.

A kind of client is a look (what happens to its images) and a naming (what its labels are called). Federations are drawn
from the pool by class, without repetition while the pool lasts, so that thousands of them take no encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas import Atlas, Embeddings, class_prototypes, feature_average, make_encoder
from fedatlas.data import Client, Dataset, Federation, load_dataset
from fedatlas.seeds import numpy_generator

Naming = tuple[int, ...]
"""Position k: what class k is called."""
POOL = 40_000
"""Images, so that even a hundred clients of 300 share hardly any."""


def _coloured(images: np.ndarray) -> np.ndarray:
    return images if images.ndim == 4 else images[..., None]


LOOKS: Mapping[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "plain": lambda images, rng: images,
    "turned 90": lambda images, rng: np.rot90(images, 1, (1, 2)).copy(),
    "turned 180": lambda images, rng: np.rot90(images, 2, (1, 2)).copy(),
    "turned 270": lambda images, rng: np.rot90(images, 3, (1, 2)).copy(),
    "inverted": lambda images, rng: 255 - images,
    "noisy": lambda images, rng: np.clip(images + rng.normal(0, 40, images.shape), 0, 255).astype(np.uint8),
    "faint": lambda images, rng: (images * 0.4 + 76).astype(np.uint8),
    "coloured": lambda images, rng: (_coloured(images) * np.array([1.0, 0.6, 0.3])).astype(np.uint8),
}


@dataclass(frozen=True)
class Kind:
    """How a client's images look, and what its labels are called."""

    look: str = "plain"
    naming: Naming = tuple(range(10))
    noise: float = 0.0
    """The share of labels that are replaced, each by one of the other nine."""
    images: int | None = None
    """How many it has; None: as many as the recipe says."""
    classes: int = 10
    """How many classes it has, drawn at random."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A federation to draw."""

    kinds: Sequence[Kind]
    """Of each client, in order."""
    images: int = 150
    alpha: float | None = None
    """Of a Dirichlet distribution of each client's labels; None: as in the pool."""
    uneven: bool = False
    """Numbers of images from a fifth to three times as many."""

    @property
    def truth(self) -> list[int]:
        """The number of each client's kind."""
        known = list(dict.fromkeys(self.kinds))
        return [known.index(kind) for kind in self.kinds]


@dataclass
class Pool:
    """Images of one data set, encoded under each look when it is first asked for."""

    name: str
    images: np.ndarray
    labels: np.ndarray
    domains: np.ndarray | None = None
    """The domain of each image; then looks are domains, and nothing is changed."""
    vectors: dict[str, tuple[Tensor, np.ndarray]] = field(default_factory=dict)

    @property
    def looks(self) -> list[str]:
        """The looks that clients may have."""
        return list(LOOKS) if self.domains is None else sorted({*self.domains.tolist()})

    def kinds(self, rng: np.random.Generator) -> list[Kind]:
        """Return a kind of client for each look."""
        return [Kind(look) for look in self.looks]

    def one_kind(self, rng: np.random.Generator) -> list[Kind]:
        """Return one of them."""
        return [self.kinds(rng)[int(rng.integers(len(self.looks)))]]

    def seen(self, look: str) -> tuple[Tensor, np.ndarray]:
        """Return the embeddings under a look, and their labels."""
        if look not in self.vectors:
            if self.domains is None:
                images, labels = LOOKS[look](self.images, numpy_generator(0, "look", look)), self.labels
            else:
                own = self.domains == look
                images, labels = self.images[own], self.labels[own]
            self.vectors[look] = _encode(images, labels), labels
        return self.vectors[look]

    def draw(self, recipe: Recipe, seed: int) -> tuple[Federation, Embeddings]:
        """Return the federation of a recipe, and the embeddings of its examples."""
        rng = numpy_generator(seed, "verdict federations")
        decks: dict[str, _Decks] = {}
        examples, names = [], []
        parts: list[int] = []
        for kind in recipe.kinds:
            vectors, labels = self.seen(kind.look)
            # Under all looks an image belongs to one client, as its embedding could tell otherwise.
            deck = decks.setdefault("" if self.domains is None else kind.look, _Decks(labels, rng))
            count = round(recipe.images * float(np.exp(rng.uniform(np.log(0.2), np.log(3))))) if recipe.uneven else None
            own = deck.deal(kind.images or count or recipe.images, recipe.alpha, kind.classes)
            examples.append(vectors[own])
            names.append(_mislabelled(np.array(kind.naming)[labels[own]], kind.noise, seed, len(parts)))
            parts.append(len(own))
        ends = np.cumsum([0, *parts])
        called = torch.from_numpy(np.concatenate(names))
        data = Dataset(
            name=self.name,
            inputs=torch.zeros(len(called), 1),
            labels=called,
            classes=tuple(str(k) for k in range(10)),
        )
        none = torch.tensor([], dtype=torch.int64)
        clients = tuple(
            Client(name=f"client-{i:05d}", train=torch.arange(ends[i], ends[i + 1]), test=none)
            for i in range(len(parts))
        )
        embeddings = Embeddings(encoder="builtin", examples=torch.cat(examples), classes=torch.eye(10))
        return Federation(data=data, clients=clients), embeddings

    def atlas(self, recipe: Recipe, seed: int, *, labelled: bool = True) -> Atlas:
        """Return the atlas of a recipe's federation."""
        make = class_prototypes if labelled else feature_average
        return make(*self.draw(recipe, seed))


class _Decks:
    """The examples of each class, shuffled; dealt again from the start when they run out."""

    def __init__(self, labels: np.ndarray, rng: np.random.Generator) -> None:
        self.rng = rng
        self.decks = [rng.permutation(np.flatnonzero(labels == k)) for k in range(10)]
        self.dealt = [0] * 10
        self.shares = np.bincount(labels, minlength=10) / len(labels)

    def deal(self, count: int, alpha: float | None, classes: int = 10) -> np.ndarray:
        shares = self.shares if alpha is None else self.rng.dirichlet([alpha] * 10)
        if classes < 10:
            lacking = self.rng.permutation(10)[classes:]
            shares = np.where(np.isin(np.arange(10), lacking), 0.0, shares + 1e-9)
            shares = shares / shares.sum()
        return np.concatenate([self._take(k, n) for k, n in enumerate(self.rng.multinomial(count, shares))])

    def _take(self, k: int, count: int) -> np.ndarray:
        places = (self.dealt[k] + np.arange(count)) % len(self.decks[k])
        self.dealt[k] += count
        return self.decks[k][places]


def _mislabelled(labels: np.ndarray, share: float, seed: int, client: int) -> np.ndarray:
    """Return labels of which a share is replaced by others."""
    if not share:
        return labels
    rng = numpy_generator(seed, "noisy labels", client)
    chosen = rng.random(len(labels)) < share
    return np.where(chosen, (labels + rng.integers(1, 10, len(labels))) % 10, labels)


def _encode(images: np.ndarray, labels: np.ndarray) -> Tensor:
    rows = torch.from_numpy(_coloured(images)).permute(0, 3, 1, 2).contiguous()
    data = Dataset(name="pool", inputs=rows, labels=torch.from_numpy(labels), classes=tuple(str(k) for k in range(10)))
    whole = Client(name="all", train=torch.arange(len(data)), test=torch.tensor([], dtype=torch.int64))
    return make_encoder("builtin").encode(Federation(data=data, clients=(whole,)), progress=False).examples


def load_pool(name: str, folder: Path | None) -> Pool:
    """Return the pool of a data set: ``digits`` is embedded, others are NAME.npz in a folder."""
    if name == "digits":
        data = load_dataset("digits")
        assert data.domain is not None
        images = data.inputs.permute(0, 2, 3, 1).numpy()
        domains = np.array(data.domains)[data.domain.numpy()]
        return Pool(name, images, data.labels.numpy(), domains)
    assert folder is not None
    with np.load(folder / f"{name}.npz") as file:
        images, labels = file["x_train"], file["y_train"].reshape(-1).astype(np.int64)
    chosen = np.sort(numpy_generator(0, "pool").choice(len(labels), min(POOL, len(labels)), replace=False))
    return Pool(name, images[chosen], labels[chosen])

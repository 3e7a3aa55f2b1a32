"""The atlas: one vector per client, in named halves, with similarities, groups and maps.

The halves are Client2Vec's (Guo et al., "Client2Vec: Improving Federated Learning by Distribution Shifts Aware Client
Indexing"): "feature" describes the look of a client's inputs, "label" its labels. Any source of vectors works.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.atlas.checks import as_tensor, by_half, check_parts
from fedatlas.atlas.floor import Comparison, compare_clients
from fedatlas.atlas.noise import noisy, plan_noise
from fedatlas.atlas.plane import group_labels, place
from fedatlas.atlas.storage import read_vectors, unusable, write_vectors
from fedatlas.atlas.summary import Summary
from fedatlas.atlas.verdict import Verdict, judge
from fedatlas.data.html import facts_table, points_picture, rows_table
from fedatlas.errors import DataError, UsageError, expect_number, unknown_name
from fedatlas.parts.types import Tensors

CLASSES = "classes"
"""In a provenance: the names of the classes."""
MOST_DRAWN = 500
"""Clients of an atlas that a notebook draws."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Atlas:
    """One vector per client, in named halves.

    >>> atlas = Atlas(names=("a", "b"), halves={"label": torch.tensor([[2.0, 0.0], [1.0, 1.0]])},
    ...               sizes=torch.tensor([30, 10]))
    >>> atlas.neighbours("a")
    [('b', 0.7071067690849304)]
    """

    names: tuple[str, ...]
    """The clients."""
    halves: Mapping[str, Tensor]
    """float32 (clients, width) each: raw means, not normalised. Arrays and lists are copied into tensors."""
    sizes: Tensor
    """int64 (clients,): the training examples of each client."""
    domains: tuple[str | None, ...] = ()
    """For pictures only; () becomes None for every client."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that say where the vectors come from: source, encoder, seed, ..."""
    summary: Summary | None = None
    """Counts, means and scatter of each class of each client, where the source has them: what the noise is known by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "halves", {own: as_tensor(table, own) for own, table in by_half(self.halves).items()})
        object.__setattr__(self, "sizes", as_tensor(self.sizes, "sizes", whole=True))
        object.__setattr__(self, "domains", tuple(self.domains) or (None,) * len(self.names))
        check_parts(self)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        halves = ", ".join(f"{own} of width {table.shape[1]}" for own, table in self.halves.items())
        source = f", from {self.provenance['source']}" if "source" in self.provenance else ""
        return f"Atlas({len(self):,} clients, {halves}{source})"

    def _repr_html_(self) -> str:
        known = ("source", "encoder", "strategy", "epochs", "seed", "federation")
        facts: dict[str, object] = {"clients": len(self)}
        facts |= {f"half {half!r}": f"width {table.shape[1]:,}" for half, table in self.halves.items()}
        facts |= {title: self.provenance[title] for title in known if title in self.provenance}
        sizes = self.sizes.tolist()
        rows = [(name, self.domains[i] or "–", sizes[i]) for i, name in enumerate(self.names)]
        table = facts_table("Atlas", facts)
        if 2 <= len(self) <= MOST_DRAWN:
            points = [(float(x), float(y)) for x, y in self.map2d("pca")]
            table += points_picture(points, self.names, about="clients in a plane, by PCA")
        return table + rows_table(("client", "domain", "examples"), rows)

    def rows(self, names: Sequence[str]) -> Tensor:
        """Return the positions of clients, int64."""
        missing = next((name for name in names if name not in self._positions), None)
        if missing is not None:
            raise UsageError(
                f"client {missing!r} is not in the atlas of {len(self)} clients ({self.names[0]!r}, ...). "
                "Make the atlas from the same federation, or add the client with add_client.",
                code="client-missing",
                client=missing,
            )
        return torch.tensor([self._positions[name] for name in names], dtype=torch.int64)

    def half(self, name: str | None = None) -> Tensor:
        """Return one half as it is, or all halves side by side."""
        chosen = [self.halves[own] for own in self._chosen(name)]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)

    def unit(self, name: str, members: Tensor | None = None) -> Tensor:
        """Return the rows of a half at length 1, of all clients or of some; a row of zeros stays zero."""
        (own,) = self._chosen(name)
        rows, scales = self.halves[own], self._inverse_norms[own]
        return rows * scales[:, None] if members is None else rows[members] * scales[members, None]

    def similarity(self, half: str | None = None) -> Tensor:
        """Return (clients, clients): the cosine of every two clients, averaged over the halves or of one half."""
        chosen = self._chosen(half)
        total = torch.zeros(len(self), len(self))
        for own in chosen:
            rows = self.unit(own)
            total.addmm_(rows, rows.T, alpha=1 / len(chosen))
        return total.clamp_(-1, 1)

    def similarity_to(
        self, members: Tensor | Sequence[int], weights: Tensor | Sequence[float] | None = None, half: str | None = None
    ) -> Tensor:
        """Return (clients,): the similarity of each client to a set of clients.

            S(i, C) = sum over j in C of N_j mean over halves of cos(beta_i, beta_j) / sum over j in C of N_j    (Eq. 1)

        Args:
            members: positions of the set's clients, in any order.
            weights: N_j, one for each member in the order of ``members``; the sizes if not given.
            half: one half alone, without the mean over halves.
        """
        members = as_tensor(members, "members", whole=True)
        if members.ndim != 1 or len(members) == 0:
            raise UsageError(
                f"members must be the positions of at least one client, got {members.tolist()}.",
                code="data-empty",
                got=members.tolist(),
                what="members",
            )
        low, high = map(int, members.aminmax())
        if low < 0 or high >= len(self):
            raise UsageError(
                f"members must be positions of the {len(self)} clients, 0 to {len(self) - 1}; got {low} to {high}. "
                "atlas.rows(names) returns them.",
                code="out-of-range",
                got=low,
                what="members",
                most=high,
            )
        share = (self.sizes[members] if weights is None else as_tensor(weights, "weights")).float()
        if share.shape != members.shape or not bool((share >= 0).all()) or not 0 < float(share.sum()) < float("inf"):
            raise UsageError(
                "weights must be one number for each member, none negative and not all zero; "
                f"got {share.tolist()} for {len(members)} members.",
                code="wrong-count",
                got=share.tolist(),
                what="weights",
            )
        # The members' unit rows are summed first, so that one product with all rows is left.
        rows = torch.cat([self.unit(own, members) for own in self._chosen(half)], dim=1)
        return ((share / share.sum()) @ rows @ self._columns(half)).clamp_(-1, 1)

    def neighbours(self, client: str, count: int = 5, half: str | None = None) -> list[tuple[str, float]]:
        """Return the most similar clients with their similarity, the nearest first."""
        if expect_number(count, "count of neighbours", whole=True) < 1:
            raise UsageError(
                f"count of neighbours must be at least 1, got {count}.", code="out-of-range", got=count, setting="count"
            )
        row = self.rows([client])
        similarity = self.similarity_to(row, torch.ones(1), half)
        order = similarity.sort(descending=True, stable=True).indices.tolist()
        nearest = [i for i in order if i != int(row)][:count]
        return [(self.names[i], float(similarity[i])) for i in nearest]

    def groups(
        self, count: int | None = None, *, half: str | None = None, method: str = "kmeans", seed: int = 0
    ) -> Tensor:
        """Return (clients,) int64: the group of each client, numbered in the order of the groups' first clients.

        Without a number they are the verdict's, and noise decides how many there are. With one they are found by
        ``kmeans``, ``gmm`` (spherical) or ``finch`` among the unit rows, so that distances follow the cosines, whatever
        the scales of the halves.
        """
        if count is None:
            return self.verdict(seed=seed).groups
        return group_labels(self._points(half), count, method, seed)

    def compare(self, names: Sequence[str] | None = None) -> Comparison:
        """Return how different every two clients are, in standard deviations of what chance would do.

        Clients are compared on the classes that both have, so other label shares are not a difference. At most 5,000
        clients can be compared at once; ``names`` chooses some.
        """
        summary = self.known_summary()
        chosen = self.names if names is None else tuple(names)
        return compare_clients(summary if names is None else summary.take(self.rows(chosen)), chosen)

    def verdict(self, *, seed: int = 0) -> Verdict:
        """Return which clients differ beyond noise, and whether in inputs, label shares or labelling.

        The seed draws the sample that is merged first where there are more than 1,000 clients.
        """
        return judge(self.known_summary(), self.names, self._classes(), seed=seed)

    def _classes(self) -> list[str] | None:
        """Return the names of the classes, if the provenance has one for each."""
        names, count = self.provenance.get(CLASSES), self.known_summary().counts.shape[1]
        fits = isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names)
        return names if fits else None

    def map2d(self, method: str = "pca", half: str | None = None, seed: int = 0) -> np.ndarray:
        """Return (clients, 2): a point for each client in a plane, by ``pca`` or ``tsne`` of the unit rows."""
        return place(self._points(half), method, seed)

    def add_client(
        self,
        name: str,
        halves: Mapping[str, Any],
        size: int,
        domain: str | None = None,
        *,
        cells: Tensors | None = None,
    ) -> "Atlas":
        """Return the atlas with one more client, made by the same source (and with the same noise, if any).

        ``cells`` are what the client sends for the summary (``fedatlas.atlas.summary.client_cells``); without them
        nothing is known by which the client could be compared.
        """
        if name in self._positions:
            raise UsageError(
                f"client {name!r} is in the atlas already; give the new client another name.",
                code="name-repeated",
                client=name,
            )
        if by_half(halves).keys() != self.halves.keys():
            raise UsageError(
                f"client {name!r}: give the halves {sorted(self.halves)}, got {sorted(halves)}.",
                code="names-unfit",
                client=name,
                got=sorted(halves),
                known=sorted(self.halves),
            )
        halves = {own: as_tensor(vector, own) for own, vector in halves.items()}
        for own, table in self.halves.items():
            if halves[own].shape != table.shape[1:]:
                raise UsageError(
                    f"client {name!r}: half {own!r} must have shape {tuple(table.shape[1:])}, "
                    f"got {tuple(halves[own].shape)}.",
                    code="wrong-shape",
                    client=name,
                    got=tuple(halves[own].shape),
                    half=own,
                )
        return replace(
            self,
            names=(*self.names, name),
            halves={own: torch.cat([table, halves[own].to(table)[None]]) for own, table in self.halves.items()},
            sizes=torch.cat([self.sizes, torch.tensor([size])]),
            domains=(*self.domains, domain),
            provenance={**self.provenance, "added": [*self.provenance.get("added", []), name]},
            summary=None if self.summary is None else self.summary.add(cells),
        )

    def with_noise(
        self,
        *,
        clip: float | None = None,
        sigma: float | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        protects: str = "client",
        seed: int = 0,
    ) -> "Atlas":
        """Return the atlas that the server gets if clients add Gaussian noise.

        Each half is clipped to norm ``clip`` and gets noise of standard deviation ``sigma`` in every entry, or as much
        as ``epsilon`` asks for; what that buys is in ``provenance["noise"]``. See ``fedatlas.atlas.noise``. The summary
        is dropped, for it would tell what the noise hides.

        Args:
            clip: the norm bound of every half; with ``protects="example"`` the source has set it.
            delta: the probability with which the guarantee may fail.
            protects: ``client`` (a client's whole data set may be another) or ``example`` (one of its examples may).
            seed: for simulations; it is not written down, for who knows it can take the noise away.
        """
        sigmas, promise = plan_noise(
            self.provenance,
            self.sizes,
            self.halves,
            clip=clip,
            sigma=sigma,
            target=epsilon,
            delta=delta,
            protects=protects,
        )
        halves = noisy(self.names, self.halves, promise["clip"], sigmas, seed)
        return replace(self, halves=halves, provenance={**self.provenance, "noise": promise}, summary=None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the atlas as one safetensors file, completely or not at all."""
        tensors = {**{f"half/{own}": table for own, table in self.halves.items()}, "sizes": self.sizes}
        words: dict[str, Any] = {
            "names": self.names,
            "domains": self.domains,
            "halves": list(self.halves),
            "provenance": dict(self.provenance),
        }
        if self.summary is not None:
            tensors |= {f"summary/{own}": tensor for own, tensor in self.summary.tensors().items()}
            words["labelled"] = self.summary.labelled
        write_vectors(path, tensors, words)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Atlas":
        """Read an atlas; raise DataError if the file was cut short or altered."""
        tensors, words = read_vectors(path)
        own = {name.removeprefix("summary/"): table for name, table in tensors.items() if name.startswith("summary/")}
        try:
            return cls(
                names=tuple(words["names"]),
                halves={own: tensors[f"half/{own}"] for own in words["halves"]},
                sizes=tensors["sizes"],
                domains=tuple(words["domains"]),
                provenance=words["provenance"],
                summary=Summary.from_tensors(own, labelled=words["labelled"]) if own else None,
            )
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise unusable(path, f"a part of it is missing or of another form ({error!r})", "content-unfit") from error

    def describe(self) -> dict[str, Any]:
        """Return short plain values for a run's record."""
        return {
            "clients": len(self),
            "widths": {own: table.shape[1] for own, table in self.halves.items()},
            "vectors": self._fingerprint,
            "provenance": dict(self.provenance),
        }

    def known_summary(self) -> Summary:
        """Return the summary; raise UsageError if there is none."""
        if self.summary is None:
            raise UsageError(
                f"{self!r} does not know its noise: it has no summary of counts and scatter. Make it with the source "
                "'class-prototypes', or 'feature-average' to leave labels alone, and without noise or a clip.",
                code="summary-missing",
                source=self.provenance.get("source"),
            )
        return self.summary

    def _chosen(self, half: str | None) -> list[str]:
        if half is not None and half not in self.halves:
            raise unknown_name("half of the atlas", half, self.halves)
        return list(self.halves) if half is None else [half]

    def __getstate__(self) -> dict[str, Any]:
        # Cached values are computed again where the atlas arrives.
        return {own.name: self.__dict__[own.name] for own in fields(self)}

    def _columns(self, half: str | None) -> Tensor:
        """Return (width, clients): the unit rows, divided by the number of halves, as columns.

        A product with few columns on the left reads this once and in order, which takes 100,000 clients about half the
        time of a product with their rows.
        """
        if half not in self._kept_columns:
            self._kept_columns[half] = (self._points(half) / len(self._chosen(half))).T.contiguous()
        return self._kept_columns[half]

    def _points(self, half: str | None) -> Tensor:
        return torch.cat([self.unit(own) for own in self._chosen(half)], dim=1)

    @cached_property
    def _kept_columns(self) -> dict[str | None, Tensor]:
        return {}

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def _inverse_norms(self) -> dict[str, Tensor]:
        norms = {own: torch.linalg.vector_norm(table, dim=1) for own, table in self.halves.items()}
        return {own: torch.where(norm > 0, 1 / norm, torch.zeros(())) for own, norm in norms.items()}

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps([self.names, self.sizes.tolist()]).encode())
        for own, table in self.halves.items():
            digest.update(f"{own} {table.shape[1]}".encode())
            digest.update(table.contiguous().numpy().data)
        return digest.hexdigest()[:16]

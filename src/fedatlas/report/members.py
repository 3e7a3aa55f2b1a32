"""The clients of a page: names, sizes and labels, and which of very many are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.data.federation import Federation
from fedatlas.report.packing import pack, pack_figures
from fedatlas.runs.run import Run
from fedatlas.seeds import numpy_generator

MOST_SHOWN = 2000
"""Clients on a page."""
MOST_WORST = 500
"""Of more clients, those served worst that are shown in any case."""
MOST_LABELS = 150_000
"""Numbers about label shares on a page; beyond that, rare classes are put together."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Members:
    """All clients, as columns."""

    names: tuple[str, ...]
    domains: tuple[str | None, ...]
    held_out: np.ndarray
    """bool (clients,)"""
    train: np.ndarray
    """int64 (clients,): training examples."""
    test: np.ndarray
    """int64 (clients,); -1 where it is not known."""
    labels: np.ndarray | None
    """int64 (clients, classes): training examples of each class."""
    classes: tuple[str, ...] = ()
    kind: str = "domain"
    """The word for what ``domains`` are: ``kind`` where a partition made clients differ."""

    def __len__(self) -> int:
        return len(self.names)

    def block(self, shown: np.ndarray) -> tuple[dict[str, Any], list[str]]:
        """Return the columns of some clients for the page, and the names of the classes in them."""
        kinds = list(dict.fromkeys(kind for kind in self.domains if kind is not None))
        place = {kind: i for i, kind in enumerate(kinds)}
        shares, classes = self._shares(shown)
        columns = {
            "name": [self.names[i] for i in shown],
            "gathered_by": self.kind,
            "domains": kinds,
            "domain": [-1 if (kind := self.domains[i]) is None else place[kind] for i in shown],
            "held_out": [int(self.held_out[i]) for i in shown],
            "train": self.train[shown].tolist(),
            "test": self.test[shown].tolist(),
            "labels": None if shares is None else pack(255 * shares, "u8"),
        }
        return columns, classes

    def fixed_answers(self, shown: np.ndarray, tested: np.ndarray | None) -> dict[str, Any] | None:
        """Return for some clients the commonest label, and how often always answering it is right, if labels are known.

        The label is the commonest of the training part. It is right as often as it occurs in the test part, if the
        labels of tests are known, (clients, classes), and otherwise in the training part itself.
        """
        if self.labels is None or self.labels.shape[1] < 2:
            return None
        known = tested is not None and tested.shape == self.labels.shape
        label = self.labels[shown].argmax(1)
        counts = (tested if known and tested is not None else self.labels)[shown]
        totals = counts.sum(1)
        right = np.where(totals > 0, counts[np.arange(len(shown)), label] / np.maximum(totals, 1), np.nan)
        right = np.where(self.labels[shown].sum(1) > 0, right, np.nan)
        names = sorted(set(label.tolist()))
        place = {k: i for i, k in enumerate(names)}
        return {
            "names": [self.classes[k] for k in names],
            "label": [place[k] for k in label.tolist()],
            "right": pack_figures(right, shares=True),
            "of": "test" if known else "training",
        }

    def _shares(self, shown: np.ndarray) -> tuple[np.ndarray | None, list[str]]:
        """Return the label shares of some clients; of very many classes the commonest, and the rest together."""
        if self.labels is None:
            return None, list(self.classes)
        if self.labels.shape[1] == 0:  # another task, whose outputs are no classes
            return None, []
        shares = self.labels[shown] / np.maximum(self.labels[shown].sum(1, keepdims=True), 1)
        most = max(8, MOST_LABELS // max(len(shown), 1))
        if shares.shape[1] <= most:
            return shares, list(self.classes)
        common = np.sort(np.argsort(-self.labels.sum(0), kind="stable")[: most - 1])
        rest = 1 - shares[:, common].sum(1, keepdims=True)
        return np.hstack([shares[:, common], rest.clip(min=0)]), [*(self.classes[i] for i in common), "others"]


def members_of_run(run: Run) -> Members:
    """Return the clients of a run, in its order."""
    federation = run.resolved["federation"]
    clients = federation["clients"]
    return Members(
        names=tuple(str(client["name"]) for client in clients),
        domains=tuple(client.get("type", client["domain"]) for client in clients),
        held_out=np.array([client["held_out"] for client in clients], bool),
        train=np.array([client["num_train"] for client in clients]),
        test=np.array([client["num_test"] for client in clients]),
        labels=np.array([client["label_counts"] for client in clients]).reshape(len(clients), -1),
        classes=tuple(str(name) for name in federation["classes"]),
        kind="kind" if any("type" in client for client in clients) else "domain",
    )


def members_of_federation(federation: Federation) -> Members:
    """Return the clients of a federation."""
    return Members(
        names=tuple(client.name for client in federation),
        domains=tuple(client.kind for client in federation),
        held_out=np.array([client.held_out for client in federation]),
        train=np.array([len(client.train) for client in federation]),
        test=np.array([len(client.test) for client in federation]),
        labels=np.stack([federation.label_counts(i).int().numpy() for i in range(len(federation))]),
        classes=tuple(federation.data.classes),
        kind="kind" if federation.types else "domain",
    )


def members_of_atlas(atlas: Atlas) -> Members:
    """Return the clients of an atlas, of which less is known."""
    counts = None if atlas.summary is None or not atlas.summary.labelled else atlas.summary.counts.numpy()
    return Members(
        names=atlas.names,
        domains=atlas.domains,
        held_out=np.zeros(len(atlas), bool),
        train=atlas.sizes.numpy(),
        test=np.full(len(atlas), -1),
        labels=counts,
        classes=() if counts is None else tuple(str(i) for i in range(counts.shape[1])),
    )


def members_of_diagnosis(diagnosis: Diagnosis) -> Members:
    """Return the clients of a diagnosis, of which only names and sizes are known."""
    count = len(diagnosis.clients)
    return Members(
        names=tuple(member.name for member in diagnosis.clients),
        domains=(None,) * count,
        held_out=np.zeros(count, bool),
        train=np.array([member.examples for member in diagnosis.clients]),
        test=np.full(count, -1),
        labels=None,
    )


def choose_shown(members: Members, worst: Sequence[int], suspects: Sequence[int]) -> np.ndarray:
    """Return the positions of the clients on the page: all, or of very many a sample with all that stand out.

    Args:
        members: all clients.
        worst: positions, the worst served first.
        suspects: positions of the clients that are accused of something.
    """
    count = len(members)
    if count <= MOST_SHOWN:
        return np.arange(count)
    kept = dict.fromkeys([*list(suspects)[:MOST_WORST], *list(worst)[:MOST_WORST]])
    order = numpy_generator(0, "page", "sample").permutation(count)
    for i in order.tolist():
        if len(kept) >= MOST_SHOWN:
            break
        kept.setdefault(i)
    return np.sort(np.array(list(kept)))


def sample_note(members: Members, shown: np.ndarray) -> dict[str, Any] | None:
    """Return how the clients on the page were chosen, where they are not all."""
    if len(shown) == len(members):
        return None
    how = f"suspects and the worst served (up to {MOST_WORST} each), and a draw of the others"
    return {"of": len(members), "how": how}

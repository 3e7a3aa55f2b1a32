"""Why a client may be served badly: each reason a kind and a sentence with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.report.members import Members
from fedatlas.report.served import Served

MOST = 400
"""Clients with reasons on a page: the worst served, and all that are accused of something."""
SMALL = 1 / 3
"""Of the median number of examples; fewer is a reason."""
FAR = 0.1
"""The share of clients that are farthest from their nearest ones."""
NEIGHBOURS = 3
FEW_TESTS = 30


def find_reasons(
    members: Members, shown: np.ndarray, worst: Sequence[int], suspects: Sequence[Suspect], points: Tensor | None
) -> dict[str, list[dict[str, str]]]:
    """Return the reasons of the clients that stand out, by their position on the page.

    Args:
        members: all clients.
        shown: the clients on the page.
        worst: positions of clients among all, the worst served first.
        suspects: accusations, and remarks on rare clients.
        points: (shown, width), unit rows of the clients on the page, if there are any.
    """
    accused: dict[str, list[Suspect]] = {}
    for one in suspects:
        accused.setdefault(one.client, []).append(one)
    place = {int(i): j for j, i in enumerate(shown)}
    looked = [i for i in worst if i in place][:MOST]
    looked += [int(i) for i in shown if members.names[int(i)] in accused and int(i) not in looked[:MOST]]
    far = None if points is None else distance_reasons(points)
    found: dict[str, list[dict[str, str]]] = {}
    for i in dict.fromkeys(looked or [int(i) for i in shown[:MOST]]):
        own = [{"kind": one.kind, "text": one.reason} for one in accused.get(members.names[i], ())]
        own += _plain(members, i)
        if far is not None and place[i] in far:
            own.append({"kind": "far-from-others", "text": far[place[i]]})
        if own:
            found[str(place[i])] = own
    return found


def _plain(members: Members, i: int) -> list[dict[str, str]]:
    """Return the reasons that sizes and labels give."""
    said = []
    if members.held_out[i]:
        said.append(("held-out", "it is held out: the model never saw its data"))
    median = float(np.median(members.train))
    if members.train[i] < SMALL * median:
        said.append(("few-examples", f"{members.train[i]:,} training examples; the median client has {median:,.0f}"))
    if members.labels is not None and members.labels.shape[1] > 1:
        common = members.labels.sum(0) > 0
        lacking = np.flatnonzero((members.labels[i] == 0) & common)
        if len(lacking) and members.train[i]:
            names = ", ".join(members.classes[k] for k in lacking[:5]) + (" ..." if len(lacking) > 5 else "")
            said.append(
                ("classes-missing", f"no training example of {len(lacking)} of {common.sum()} classes: {names}")
            )
    if 0 <= members.test[i] < FEW_TESTS:
        said.append(("few-tests", f"only {members.test[i]} test examples, so its result may be chance"))
    return [{"kind": kind, "text": text} for kind, text in said]


def distance_reasons(points: Tensor) -> dict[int, str]:
    """Return a sentence for each client that is far from all others, by position.

    Far is the tenth of clients whose three nearest are least similar, if that is clearly less than usual.
    """
    count = len(points)
    if count < 2 * NEIGHBOURS:
        return {}
    near = _nearness(points)
    usual = float(np.median(near))
    limit = np.quantile(near, FAR)
    spread = float(np.median(np.abs(near - usual))) * 1.4826
    return {
        int(j): f"its data are unlike the others': likeness to its {NEIGHBOURS} nearest clients {near[j]:.2f}, where "
        f"{usual:.2f} is usual (1 is alike, 0 unrelated)"
        for j in np.flatnonzero((near <= limit) & (near < usual - 2 * max(spread, 0.01)))
    }


def _nearness(points: Tensor) -> np.ndarray:
    """Return the mean cosine of each client with its nearest ones, a block of rows at a time."""
    parts = []
    for start in range(0, len(points), 1000):
        cosines = points[start : start + 1000] @ points.T
        nearest = cosines.topk(NEIGHBOURS + 1, dim=1).values[:, 1:]
        parts.append(nearest.mean(1).numpy())
    return np.concatenate(parts)


def worst_served(served: Sequence[Served]) -> list[int]:
    """Return the tested clients by the mean of their main metric over algorithms, the worst first."""
    if not served:
        return []
    sign = 1 if served[0].higher_is_better else -1
    table = sign * np.stack([own.figures for own in served])
    known = np.isfinite(table).any(0)
    mean = np.nanmean(table[:, known], axis=0) if known.any() else np.zeros(0)
    return [int(i) for i in np.flatnonzero(known)[np.argsort(mean, kind="stable")]]


def suspect_positions(members: Members, suspects: Sequence[Suspect]) -> list[int]:
    """Return the positions of the clients that are accused."""
    place: Mapping[str, Any] = {name: i for i, name in enumerate(members.names)}
    return list(dict.fromkeys(place[own.client] for own in suspects if own.client in place))

"""What a server lets no node do, whatever the algorithm: count for most, send a change out of scale, ruin the model.

These bounds are wide, so that runs of honest nodes keep the simulator's bits. Whoever expects attacks adds a defence
that is closer, such as ``clipped`` or ``trimmed_mean``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import torch
from torch import Tensor

from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import norms
from fedatlas.parts.tensor_math import add
from fedatlas.parts.types import Cohort, ServerState, Tensors, Upload
from fedatlas.parts.weighting import Weighting

FEW = 3
"""With fewer replies than this, nobody can say which of them is out of scale."""
EXPLODED = 1e3
"""A round may not make the model's parameters longer than this, times their length before and one."""


@dataclass(frozen=True, kw_only=True)
class MostWeight(Weighting):
    """Lets no client count more than one would that is ``times`` as large as each of the others.

    p_k <= times / (times + n - 1); the rest is shared by the others in the proportions that they have, n: replies
    """

    name: ClassVar[str] = "most_weight"
    foreseeable: ClassVar[bool] = True
    times: float = 10.0

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Return the weights, as they are if none is above the limit."""
        total, count = float(weights.sum()), len(weights)
        limit = self.times / (self.times + count - 1)
        if not 0 < total < math.inf or not bool((weights / total > limit).any()):
            return weights, memory
        shares = weights / total
        held = torch.zeros(count, dtype=torch.bool)
        while bool((above := (shares > limit) & ~held).any()):
            held |= above
            rest = shares[~held]
            rest = rest if float(rest.sum()) > 0 else torch.ones_like(rest)
            shares[held] = limit
            shares[~held] = rest / rest.sum() * (1 - limit * int(held.sum()))
        return shares, memory


def capped_weights(algorithm: Algorithm, times: float | None) -> Algorithm:
    """Return the algorithm with a limit on how much a client may count."""
    if times is None:
        return algorithm
    try:
        return algorithm.with_weighting(MostWeight(times=times))
    except UsageError:  # all clients must count the same in it
        return algorithm


def out_of_scale(
    uploads: Mapping[str, Upload], times: float | None, received: Mapping[str, Tensors] | None = None
) -> dict[str, str]:
    """Return the clients whose change or running statistics went far beyond the median client's, and by how much.

    ``received`` are the running statistics that each client got.
    """
    if times is None or len(uploads) < FEW:
        return {}
    found = {
        name: f"its change is {much:,.0f} times as long as the median one, and {times:g} times is the limit"
        for name, much in _beyond({name: upload.change for name, upload in uploads.items()}, times)
    }
    sent = received or {}
    moves = {name: add(upload.buffers, sent[name], -1.0) for name, upload in uploads.items() if name in sent}
    # Means and variances have other units, and the larger ones would hide the others.
    for kind in dict.fromkeys(_kind(name) for move in moves.values() for name in move):
        own = {name: {key: t for key, t in move.items() if _kind(key) == kind} for name, move in moves.items()}
        for name, much in _beyond(own, times):
            reason = f"its {kind} moved {much:,.0f} times as far as the median one, and {times:g} times is the limit"
            found.setdefault(name, reason)
    return found


def ruined(before: ServerState, after: ServerState, uploads: Sequence[Upload] = ()) -> str | None:
    """Return in words how a round has ruined the model, or None.

    Running statistics may become as long as those of the client with the shortest: they begin at 0 and 1, and the data
    may be far from that.
    """
    for name, tensor in _tensors(after):
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"{name} would hold NaN or infinity"
    own = norms([upload.buffers for upload in uploads]).tolist() if uploads else []
    for title in ("parameters", "running statistics"):
        first, then = (_length(state, title) for state in (before, after))
        usual = max(first, min(own)) if own and title != "parameters" else first
        if then > EXPLODED * (usual + 1):
            return f"the model's {title} would be {then / (first or 1):,.0f} times as long as before"
    return None


def _beyond(terms: Mapping[str, Tensors], times: float) -> Iterator[tuple[str, float]]:
    """Yield whose tensors are more than so many times as long as the median ones, and how many times."""
    lengths = dict(zip(terms, norms(list(terms.values())).tolist(), strict=True))
    usual = median(lengths.values())
    for name, length in lengths.items():
        if usual > 0 and length > times * usual:
            yield name, length / usual


def _kind(buffer: str) -> str:
    return buffer.rpartition(".")[2]


def _tensors(state: ServerState) -> Iterator[tuple[str, Tensor]]:
    for kept in (state, *state.groups):
        yield from kept.shared.items()
        yield from kept.buffers.items()


def _length(state: ServerState, title: str) -> float:
    """Return the Euclidean length of all shared parameters or buffers, those of groups too."""
    everyone = [kept.shared if title == "parameters" else kept.buffers for kept in (state, *state.groups)]
    return math.hypot(*norms(everyone).tolist())

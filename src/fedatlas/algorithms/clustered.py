"""Clustered Sampling. Fraboni et al., Clustered Sampling: Low-Variance and Improved Representativity for Clients
Selection in Federated Learning, ICML 2021.

p_k = n_k / sum n over the clients that may train, m = clients a round
sampler: m distributions r_1..r_m with sum_k r_l(k) = 1 and sum_l r_l(k) = m p_k; one client from each
server:  w^{t+1} = (1/m) sum_l w_{k_l}        a client drawn from two distributions counts twice

Algorithm 1: clients by size, largest first, are poured into bins of capacity 1, spilling into the next.
Algorithm 2: G_k = w_k - w^t of k's last round (0 before its first); Ward linkage of their pairwise measures; cut so
that each group has sum p <= 1/m; the m heaviest groups begin the bins, the others are poured into them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError, expect, unknown_name
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sampler import Sampler, Uniform
from fedatlas.parts.types import Cohort, Roster, Tensors
from fedatlas.parts.weighting import ByExamples, Equal
from fedatlas.seeds import repeatable

Bin = dict[int, int]
"""One distribution: mass by client. Masses are whole numbers, m n_k in all for client k, and a full bin holds sum n:
no rounding, so that the sums hold exactly (the authors' code scales probabilities by 1e10 instead)."""
Measure = Literal["arccos", "L1", "L2"]
MEASURES = ("arccos", "L1", "L2")
PAIRS = "pairs"
"""Where the sampler remembers what every pair of changes gave."""
BLOCK = 2**23
"""How many numbers of the representative gradients are compared at a time."""


@dataclass(frozen=True, kw_only=True)
class ClusteredBySize(Sampler):
    """Algorithm 1: one client from each of m distributions made from the clients' sizes alone."""

    name: ClassVar[str] = "clustered_by_size"
    needs_equal_weights: ClassVar[bool] = True

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        """Return one client of each distribution; one may come twice."""
        sizes = {k: roster[k].num_examples for k in candidates}
        return draw(bins_by_size(sizes, count), rng), memory


@dataclass(frozen=True, kw_only=True)
class ClusteredBySimilarity(Sampler):
    """Algorithm 2: one client from each of m distributions of clients whose last changes point the same way."""

    name: ClassVar[str] = "clustered_by_similarity"
    reads_uploads: ClassVar[bool] = True
    needs_equal_weights: ClassVar[bool] = True
    measure: Measure = "arccos"
    """How two clients' changes are compared: the angle between them, or the L1 or L2 norm of their difference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measure not in MEASURES:
            raise unknown_name("measure of ClusteredBySimilarity", self.measure, MEASURES)

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        """Group the clients again and return one client of each distribution; a client may come twice."""
        sizes = {k: roster[k].num_examples for k in candidates}
        rows = np.zeros((len(sizes), len(sizes)))
        if PAIRS in memory:
            rows = measured(memory[PAIRS], self.measure).cpu().numpy()[np.ix_(list(sizes), list(sizes))]
        return draw(bins_by_similarity(sizes, count, rows, rng), rng), memory

    def observe(self, memory: Tensors, cohort: Cohort) -> Tensors:
        """Keep the changes of the clients that answered, and compare them with everyone's."""
        if not any(upload.change for upload in cohort.uploads):
            return memory  # nothing is shared: by their changes all clients are alike
        changes = {key: change for key, change in memory.items() if key != PAIRS}
        for upload in cohort.uploads:
            parts = [upload.change[name].flatten() for name in sorted(upload.change)]
            changes[f"change/{upload.client}"] = torch.cat(parts)
        new = [upload.client for upload in cohort.uploads]
        nothing = torch.zeros_like(changes[f"change/{new[0]}"])
        everyone = [changes.get(f"change/{client.id}", nothing) for client in cohort.roster]
        rows = compare([everyone[k] for k in new], everyone, self.measure)
        pairs = memory[PAIRS].clone() if PAIRS in memory else rows.new_zeros(len(everyone), len(everyone))
        pairs[new], pairs[:, new] = rows, rows.T
        return {**changes, PAIRS: pairs}


def bins_by_size(sizes: Mapping[int, int], count: int) -> list[Bin]:
    """Return Algorithm 1's distributions."""
    bins: list[Bin] = [{} for _ in range(count)]
    largest_first = sorted(sizes, key=lambda k: (-sizes[k], k))
    pour(bins, largest_first, {k: count * n for k, n in sizes.items()}, sum(sizes.values()))
    return bins


def bins_by_similarity(
    sizes: Mapping[int, int], count: int, rows: NDArray[np.float64], rng: np.random.Generator
) -> list[Bin]:
    """Return Algorithm 2's distributions, given one row of measures for each client."""
    capacity = sum(sizes.values())
    bins: list[Bin] = []
    masses = {}
    for client, size in sizes.items():
        # A client with p_k >= 1/m first fills floor(m p_k) distributions alone.
        alone, masses[client] = divmod(count * size, capacity)
        bins += [{client: capacity} for _ in range(alone)]
    missing = count - len(bins)
    if missing == 0:
        return bins
    clients = list(sizes)
    groups = [[clients[i] for i in group] for group in light_groups(rows, [masses[k] for k in clients], capacity)]
    groups.sort(key=lambda group: (sum(masses[k] for k in group), group))
    begun: list[Bin] = [{k: masses[k] for k in group if masses[k]} for group in groups[-missing:]]
    rest = [k for group in groups[:-missing] for k in rng.permutation(group).tolist()]
    pour(begun, rest, masses, capacity)
    return bins + begun


def light_groups(rows: NDArray[np.float64], masses: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the largest groups of the Ward tree that weigh no more than the capacity; each row is an observation."""
    # Imported here: it takes half a second, which else every process of a network's nodes would pay.
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import pdist

    groups = {i: [i] for i in range(len(masses))}
    weights = list(masses)
    for one, other, *_ in linkage(pdist(rows), "ward").tolist():
        # A merge's height is the merged mass: it only grows up the tree, so the cut leaves whole branches.
        weights.append(weights[int(one)] + weights[int(other)])
        if weights[-1] <= capacity:
            groups[len(weights) - 1] = groups.pop(int(one)) + groups.pop(int(other))
    return list(groups.values())


def pour(bins: Sequence[Bin], clients: Iterable[int], masses: Mapping[int, int], capacity: int) -> None:
    """Fill the bins in order with the clients' masses, one client after another; what does not fit goes on."""
    waiting = iter(bins)
    target: Bin = {}
    room = 0
    for client in clients:
        left = masses[client]
        while left:
            while room == 0:
                target = next(waiting)
                room = capacity - sum(target.values())
            target[client] = min(left, room)
            left, room = left - target[client], room - target[client]


def draw(bins: Sequence[Bin], rng: np.random.Generator) -> list[int]:
    """Return one client of each distribution."""
    capacity = sum(bins[0].values())
    drawn = []
    for content, ticket in zip(bins, rng.integers(capacity, size=len(bins)).tolist(), strict=True):
        ends = np.cumsum(list(content.values()))
        drawn.append(list(content)[int(np.searchsorted(ends, ticket, side="right"))])
    return drawn


def compare(some: Sequence[Tensor], everyone: Sequence[Tensor], measure: Measure) -> Tensor:
    """Return inner products (L1: distances) of vectors, float64 (some, everyone), a block of numbers at a time."""
    width = max(1, BLOCK // len(everyone))
    total = torch.zeros(len(some), len(everyone), dtype=torch.float64, device=some[0].device)
    with repeatable(total.device):  # the bits of a product depend on the number of threads
        for start in range(0, len(some[0]), width):
            one = torch.stack([vector[start : start + width] for vector in some]).double()
            other = torch.stack([vector[start : start + width] for vector in everyone]).double()
            total += torch.cdist(one, other, p=1) if measure == "L1" else one @ other.T
    return total


def measured(pairs: Tensor, measure: Measure) -> Tensor:
    """Return the measure between all clients from what ``compare`` gave for each pair."""
    if measure == "L1":
        return pairs
    squares = pairs.diagonal()
    if measure == "L2":
        result = (squares[:, None] + squares - 2 * pairs).clamp(min=0).sqrt()
    else:
        norms = (squares[:, None] * squares).sqrt()
        # The angle to a client that has not taken part yet counts as 0.
        result = torch.where(norms > 0, (pairs / norms).clamp(-1, 1).arccos(), 0.0)
    return result.fill_diagonal_(0)


@recipe(changes="sampler", over="base", paper="Fraboni et al. 2021")
def clustered(base: Algorithm | None = None, algorithm: int = 2, measure: Measure = "arccos") -> Algorithm:
    """``base`` (FedAvg) with one client from each of m groups of similar clients, all answers counting the same."""
    if algorithm not in (1, 2):
        raise UsageError(
            f"clustered(algorithm) must be 1 (by size) or 2 (by similarity), got {algorithm!r}.",
            code="wrong-value",
            setting="clustered(algorithm)",
            got=algorithm,
        )
    base = base if base is not None else fedavg()
    expect(base, Algorithm, "clustered(base) must be an algorithm", "Write clustered(fedatlas.algorithms.fedavg()).")
    for link in base.weighting:
        if type(link) not in (ByExamples, Equal):
            raise UsageError(
                "clustered(base) needs answers that count 1/m each, or its draws are biased; "
                f"{base.name} weighs them by {type(link).__name__}. "
                "Use a base that averages by examples, such as fedavg, fedprox or moon.",
                code="base-unfit",
                base=base.name,
                part=type(link).__name__,
            )
    for rule in base.server:
        if rule.ignores_weights:
            raise UsageError(
                f"clustered(base) needs a mean of the answers, but {base.name} has the rule {type(rule).__name__}, "
                "which does not use the mean. Use another base.",
                code="base-unfit",
                base=base.name,
                part=type(rule).__name__,
            )
    if type(base.sampler) is not Uniform:
        raise UsageError(
            f"clustered(base) chooses the clients itself, but {base.name} has its own sampler, "
            f"{type(base.sampler).__name__}. Use a base that samples uniformly.",
            code="base-unfit",
            base=base.name,
            part=type(base.sampler).__name__,
        )
    sampler: Sampler = ClusteredBySize() if algorithm == 1 else ClusteredBySimilarity(measure=measure)
    name = "clustered" if base.name == "fedavg" else f"clustered+{base.name}"
    return replace(base, name=name, sampler=sampler, weighting=(Equal(),))

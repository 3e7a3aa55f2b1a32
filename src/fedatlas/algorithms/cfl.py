"""CFL. Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints, IEEE TNNLS 2020.

All clients begin as one group c. After a round with changes d_i of its clients, the group is split in two if
    || sum_i (n_i / sum n) d_i || < eps1        the group has come to rest
    max_i || d_i ||              > eps2         but not its clients
    (c1, c2) = argmin over bipartitions of alpha_cross = max_{i in c1, j in c2} cos(d_i, d_j)          Algorithm 1
    gamma_max < sqrt((1 - alpha_cross) / 2)                                                            Eq. 31
Both new groups go on from the group's model. The best bipartition is that of single linkage: the two clients with the
largest cosine are joined, again and again, until two sets are left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError, expect
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sharing import Level, Regrouped, Sharing
from fedatlas.parts.types import Cohort, Roster, Tensors, Upload
from fedatlas.seeds import repeatable

Linkage = Literal["single", "complete"]


@dataclass(frozen=True, kw_only=True)
class BySplitting(Sharing):
    """Begins with one group, and splits a group whose clients pull apart when it has come to rest."""

    name: ClassVar[str] = "by_splitting"
    reads_uploads: ClassVar[bool] = True
    needs_everyone: ClassVar[bool] = True
    eps1: float = 0.4
    """A group is at rest if its mean change is shorter than this."""
    eps2: float = 1.6
    """Its clients are not if the longest of their changes is longer than this."""
    after: int = 20
    """The first rounds, in which nothing is split."""
    gamma_max: float = 0.0
    """How far the clients of one kind may deviate from their mean, as the paper's Eq. 31 bounds it."""
    linkage: Linkage = "single"
    """How the two parts are found: ``single`` is the paper's best bipartition, ``complete`` is the authors' code."""
    level: Level = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("eps1", "eps2", "gamma_max", "after"):
            if getattr(self, setting) < 0:
                raise UsageError(
                    f"BySplitting({setting}) must not be negative, got {getattr(self, setting)}.",
                    code="out-of-range",
                    setting=f"BySplitting({setting})",
                    got=getattr(self, setting),
                )

    def place(self, roster: Roster) -> Tensor:
        """Return one group of all."""
        return torch.zeros(len(roster), dtype=torch.int64)

    def observe(self, memory: Tensors, group_of: Tensor, cohorts: Mapping[int, Cohort]) -> Regrouped:
        """Split each group that is at rest while its clients are not; a group with a missing client stays whole."""
        parents = list(range(int(group_of.max()) + 1))
        after = group_of.clone()
        lengths = torch.full((len(parents), 2), -1.0, dtype=torch.float64)  # of a group that did not train
        for group, cohort in sorted(cohorts.items()):
            rows = torch.stack([_flat(upload) for upload in cohort.uploads])
            lengths[group] = _lengths(rows, cohort.uploads)
            apart = self._part(cohort, rows, *lengths[group].tolist())
            if apart:
                after[apart] = len(parents)
                parents.append(group)
        # A client that is held out has no change: it stays in the first part.
        return Regrouped(after, {**memory, "lengths": lengths}, parents)

    def remarks(self, memory: Tensors) -> dict[str, Any]:
        """Return how long the mean change of each group was in the round, and the longest of its clients'."""
        rows = memory.get("lengths", torch.empty(0, 2)).tolist()
        mean, longest = ([None if row[i] < 0 else row[i] for row in rows] for i in (0, 1))
        return {"mean_change": mean, "longest_change": longest}

    def _part(self, cohort: Cohort, rows: Tensor, mean: float, longest: float) -> list[int]:
        """Return the clients that leave a group, or none; the smallest client id stays."""
        uploads = cohort.uploads
        if cohort.round <= self.after or not 2 < len(uploads) == cohort.num_training_clients:
            return []
        if not (mean < self.eps1 and longest > self.eps2):
            return []
        with repeatable(rows.device):
            unit = rows / torch.linalg.vector_norm(rows, dim=1).clamp(min=1e-12)[:, None]
            cosines = (unit @ unit.T).clamp(-1, 1).cpu().numpy()
        sides = bipartition(cosines, self.linkage)
        across = float(cosines[np.ix_(sides, ~sides)].max())
        if not self.gamma_max < ((1 - across) / 2) ** 0.5:
            return []
        return [upload.client for upload, side in zip(uploads, sides.tolist(), strict=True) if side != sides[0]]


def _lengths(rows: Tensor, uploads: Sequence[Upload]) -> Tensor:
    """Return float64 (2,): the length of the clients' mean change, and of the longest."""
    sizes = torch.tensor([float(upload.num_examples) for upload in uploads], dtype=torch.float64)
    with repeatable(rows.device):  # the bits of a product depend on the number of threads
        mean = torch.linalg.vector_norm((sizes / sizes.sum()).to(rows.device) @ rows)
        return torch.stack([mean, torch.linalg.vector_norm(rows, dim=1).max()]).cpu()


def bipartition(cosines: np.ndarray, linkage: Linkage = "single") -> np.ndarray:
    """Return bool (clients,): two sets, such that the largest cosine between them is as small as it can be.

    >>> bipartition(np.array([[1.0, 0.9, -0.5], [0.9, 1.0, -0.2], [-0.5, -0.2, 1.0]])).tolist()
    [True, True, False]
    """
    from scipy.cluster.hierarchy import fcluster  # here, as it takes half a second
    from scipy.cluster.hierarchy import linkage as tree
    from scipy.spatial.distance import squareform

    distances = squareform(1 - cosines, checks=False).clip(min=0)
    found = fcluster(tree(distances, linkage), 2, "maxclust")
    return np.asarray(found == found[0])


def _flat(upload: Upload) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in upload.change.values()])


@recipe(changes="sharing", over="base", paper="Sattler et al. 2020")
def cfl(
    base: Algorithm | None = None,
    eps1: float = 0.4,
    eps2: float = 1.6,
    after: int = 20,
    gamma_max: float = 0.0,
    linkage: Linkage = "single",
) -> Algorithm:
    """``base`` (FedAvg) with a model for each group; a group splits when its clients' changes point apart."""
    base = base if base is not None else fedavg()
    expect(base, Algorithm, "cfl(base) must be an algorithm", "Write cfl(base=fedatlas.algorithms.fedavg()).")
    name = "cfl" if base.name == "fedavg" else f"cfl+{base.name}"
    sharing = BySplitting(eps1=eps1, eps2=eps2, after=after, gamma_max=gamma_max, linkage=linkage)
    return replace(base, name=name, sharing=sharing)

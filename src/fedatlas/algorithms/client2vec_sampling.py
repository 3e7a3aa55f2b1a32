"""Client2Vec on the server: who takes part (Eq. 1) and how much each counts (Eq. 3). The recipe is in client2vec.py.

S(i, C)  = sum_{j in C} N_j mean over halves of cos(beta_i, beta_j) / sum_{j in C} N_j                   in [-1, 1]
sampler    p_i ~ exp(S(i, C^{t-1}) / tau), 0 for those drawn in the last floor(M / 2m) rounds; m without replacement
weights    q_i exp(A_i^t / lambda1), normalised over C^t;   A_i^t = gamma A_i^{t-1} + S(i, C^t),  A_i^0 = 0
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.provenance import atlas_remarks
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError, unknown_name
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.sampler import Sampler, Uniform
from fedatlas.parts.types import Cohort, Roster, Tensors
from fedatlas.parts.weighting import Weighting
from fedatlas.seeds import repeatable

VECTOR = Disclosure("vector", "the client's vector in the atlas, made once before training", "atlas", (None,))
"""What every use of an atlas discloses."""
ROWS, LAST_DRAWN, PAST = "rows", "last_drawn", "past"
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class SimilarToLast(Sampler):
    """Draws clients like those of the last round, and for a while not the same ones again."""

    name: ClassVar[str] = "similar_to_last"
    discloses: ClassVar[tuple[Disclosure, ...]] = (VECTOR,)
    atlas: Atlas
    tau: float = 0.5
    """Temperature: the smaller, the more alike two rounds in a row; ``inf`` draws uniformly outside the window."""
    half: str | None = None
    """One half of the vectors, to be compared alone; None takes the mean over all halves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tau > 0:
            raise UsageError(
                f"SimilarToLast(tau) must be above 0, got {self.tau}.",
                code="out-of-range",
                setting="SimilarToLast(tau)",
                got=self.tau,
            )
        check_half(self.atlas, self.half, "SimilarToLast")

    def check_clients(self, federation: Federation) -> list[str]:
        """Return a remark where the atlas was made of other clients."""
        return atlas_remarks(self.atlas, federation)

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return where each client is in the atlas, and that none was drawn yet (round 0)."""
        return {ROWS: positions(self.atlas, roster), LAST_DRAWN: torch.zeros(len(roster), dtype=torch.int64)}

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        """Return ``count`` distinct clients by Eq. 1, and when each was drawn last."""
        last = memory[LAST_DRAWN].cpu().clone()
        if bool(last.any()):
            everyone = np.asarray(candidates)
            # The m largest of log p_i + Gumbel noise are m draws without replacement, however small some p_i are.
            keys = self.scores(everyone, count, roster, memory) + rng.gumbel(size=len(everyone))
            drawn = sorted(everyone[np.argpartition(-keys, count - 1)[:count]].tolist())
        else:
            # The paper is silent on the first round; this one is the base's.
            drawn, _ = Uniform().sample(candidates, count, roster, {}, rng)
        # Drawn, not answered: the window spreads the asking, and so a draw never depends on whose answer was lost.
        last[drawn] = int(last.max()) + 1
        return drawn, memory | {LAST_DRAWN: last}

    def scores(self, candidates: NDArray[np.int64], count: int, roster: Roster, memory: Tensors) -> NDArray[np.float64]:
        """Return ``log p_i`` up to a constant: ``S(i, C^{t-1}) / tau``, -inf for who was drawn within the window."""
        last, rows = memory[LAST_DRAWN].cpu().numpy(), memory[ROWS].cpu()
        previous = int(last.max())
        members = np.flatnonzero(last == previous).tolist()
        sizes = torch.tensor([roster[k].num_examples for k in members])
        with repeatable(CPU):  # the bits of a product may depend on the number of threads
            similarity = self.atlas.similarity_to(rows[members], sizes, self.half)[rows[candidates]]
        last = last[candidates]
        window = len(candidates) // (2 * count)
        free = last < max(previous + 1 - window, 1)
        if np.count_nonzero(free) < count:
            # Only after cohorts of other sizes: the window shrinks until the m that waited longest are free.
            free = last <= np.partition(last, count - 1)[count - 1]
        return np.where(free, similarity.numpy().astype(np.float64) / self.tau, -np.inf)


@dataclass(frozen=True, kw_only=True)
class SimilarityWeights(Weighting):
    """Gives more weight to clients that are similar to recently trained ones, including this round's."""

    name: ClassVar[str] = "similarity"
    discloses: ClassVar[tuple[Disclosure, ...]] = (VECTOR,)
    atlas: Atlas
    gamma: float = 0.5
    """How much of the past stays from round to round; 0 compares with this round's clients only."""
    lambda1: float = 1.0
    """Temperature: the smaller, the more similarity counts; ``inf`` leaves the weights as they are."""
    half: str | None = None
    """One half of the vectors, to be compared alone; None takes the mean over all halves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise UsageError(
                f"SimilarityWeights(gamma) must be in [0, 1], got {self.gamma}.",
                code="out-of-range",
                setting="SimilarityWeights(gamma)",
                got=self.gamma,
            )
        if not self.lambda1 > 0:
            raise UsageError(
                f"SimilarityWeights(lambda1) must be above 0, got {self.lambda1}.",
                code="out-of-range",
                setting="SimilarityWeights(lambda1)",
                got=self.lambda1,
            )
        check_half(self.atlas, self.half, "SimilarityWeights")

    def check_clients(self, federation: Federation) -> list[str]:
        """Return a remark where the atlas was made of other clients."""
        return atlas_remarks(self.atlas, federation)

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        """Return where each client is in the atlas, and no past."""
        width = self.atlas.half(self.half).shape[1]
        return {ROWS: positions(self.atlas, roster), PAST: torch.zeros(width, dtype=torch.float64)}

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Multiply the weights by ``exp(A_i / lambda1)``, up to a common factor."""
        uploads = cohort.uploads
        # C^t is who answered, each as often as it was drawn: only their models are averaged.
        sizes = [float(u.num_examples * cohort.draws.get(u.client, 1)) for u in uploads]
        share = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
        with repeatable(CPU):
            vectors = self._vectors(memory[ROWS].cpu()[[upload.client for upload in uploads]])
            # S(i, C) is the product of i's vector with the mean of C's, so the decayed sum of those means gives A for
            # every client. A need not be updated for all of them.
            past = self.gamma * memory[PAST].cpu() + share @ vectors
            scaled = vectors @ past / self.lambda1
        return weights * (scaled - scaled.max()).exp(), memory | {PAST: past}

    def _vectors(self, rows: Tensor) -> Tensor:
        """Return vectors, float64, whose inner product is the mean over halves of the cosine."""
        halves = list(self.atlas.halves) if self.half is None else [self.half]
        units = [F.normalize(self.atlas.halves[own][rows].double(), dim=1) for own in halves]
        return torch.cat(units, dim=1) / math.sqrt(len(halves))


def check_half(atlas: Atlas, half: str | None, part: str) -> None:
    """Raise UsageError if the atlas does not have this half."""
    if half is not None and half not in atlas.halves:
        raise unknown_name(f"half of the atlas of {part}", half, atlas.halves)


def positions(atlas: Atlas, roster: Roster) -> Tensor:
    """Return each client's row of the atlas, by client id; -1 for held-out clients, which need not be in it."""
    training = [client for client in roster if not client.held_out]
    rows = atlas.rows([client.name for client in training])
    for client, size in zip(training, atlas.sizes[rows].tolist(), strict=True):
        # Names such as client-0 occur in every partition; the sizes show that an atlas is of other data.
        if client.num_examples != size:
            raise UsageError(
                f"client {client.name} has {client.num_examples} training examples, but {size} in the atlas: it was "
                "made from other data or another partition. Make the atlas of this federation.",
                code="data-differ",
                client=client.name,
                got=client.num_examples,
                wanted=size,
            )
    found = torch.full((len(roster),), -1, dtype=torch.int64)
    found[[client.id for client in training]] = rows
    return found

"""DP-FedAvg. McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018
(arXiv:1710.06963), Algorithm 1 with flat clipping and the estimator f_f, all weights 1.

C       each client with probability q = m / K, whatever the others do            m: clients a round, K: all that train
w^{t+1} = w^t + 1/m ( sum_{k in C} (w_k - w^t) min(1, S / ||w_k - w^t||) + N(0, (z S)^2) )

The sum is divided by m, a fixed number, and not by how many answered. One client more or less changes the sum by at
most S, so the noise is z times what one client can do, and the accountant states epsilon for z, q and the rounds.
"""

import math
import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithms.accountant import LEAST_NOISE, MOST_NOISE, epsilon
from fedatlas.algorithms.over_base import over
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Combination, Gathered, norms, scaled
from fedatlas.parts.sampler import Poisson, Uniform
from fedatlas.parts.tensor_math import weighted_sum, zeros_like
from fedatlas.parts.types import Cohort, Tensors
from fedatlas.parts.weighting import ByExamples, Equal
from fedatlas.seeds import generator

MOST_CLIP = 1e30
"""So that no float32 overflows, whatever the noise."""


@dataclass(frozen=True, kw_only=True)
class NoisySum(Combination):
    """Clips every change, adds them up with noise, and divides by the number of clients that a round should have."""

    name: ClassVar[str] = "noisy_sum"
    ignores_weights: ClassVar[bool] = True
    ends: ClassVar[bool] = True
    private: ClassVar[bool] = True
    clip: float = 1.0
    """The norm S that no change may exceed."""
    noise: float = 1.0
    """z: the noise's standard deviation, in units of ``clip``."""
    delta: float = 1e-5
    """At which delta epsilon is stated; it should be well below 1 / clients."""
    secure: bool = False
    """Draw the noise from the operating system's source; no seed repeats it then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check("clip", self.clip, 0 < self.clip <= MOST_CLIP, f"above 0 and at most {MOST_CLIP:g}")
        stated = LEAST_NOISE <= self.noise <= MOST_NOISE
        span = f"0 for none, or in [{LEAST_NOISE:g}, {MOST_NOISE:g}], where it buys an epsilon"
        _check("noise", self.noise, self.noise == 0 or stated, span)
        _check("delta", self.delta, 0 < self.delta < 1, "in (0, 1)")

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        """Return one change, also where no client answered: that must not be told from another round."""
        total = zeros_like(cohort.shared)
        if gathered.changes:
            lengths = norms(gathered.changes)
            factors = (self.clip / lengths.clamp(min=self.clip)).clamp(max=1)
            total = weighted_sum(scaled(gathered.changes, factors), torch.ones(len(lengths), dtype=torch.float64))
        rng = generator(cohort.seed, "noise", self.name)
        for tensor in total.values():
            drawn = _secure_normal(tensor.shape) if self.secure else torch.randn(tensor.shape, generator=rng)
            tensor += self.noise * self.clip * drawn.to(tensor)
        return Gathered(
            changes=[{name: tensor / cohort.size for name, tensor in total.items()}],
            moves=[{}],
            weights=torch.ones(1, dtype=torch.float64),
            remarks={**gathered.remarks, self.name: self.promise(cohort)},
        ), memory

    def promise(self, cohort: Cohort) -> dict[str, Any]:
        """Return what all rounds up to this one cost, as plain values; epsilon is None where there is no noise."""
        rate = cohort.size / cohort.num_training_clients
        found = epsilon(noise=self.noise, rate=rate, rounds=cohort.round, delta=self.delta)
        return {
            "protects": "client",
            "neighbours": "add or remove one client",
            "epsilon": found if found < math.inf else None,
            "delta": self.delta,
            "noise": self.noise,
            "clip": self.clip,
            "rate": rate,
        }


def _secure_normal(shape: torch.Size) -> Tensor:
    """Return normal numbers from the operating system's random bytes, by Box and Muller's transform."""
    count = math.prod(shape)
    words = np.frombuffer(os.urandom(16 * count), dtype=np.uint64).reshape(2, count) >> np.uint64(11)
    first, second = (words.astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
    return torch.from_numpy(np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)).view(shape)


def _check(setting: str, value: float, right: bool, what: str) -> None:
    if not right:
        raise UsageError(
            f"NoisySum({setting}) must be {what}, got {value}.",
            code="out-of-range",
            setting=f"NoisySum({setting})",
            got=value,
        )


@recipe(changes="sampler, weighting, combination", over="base", paper="McMahan et al. 2018")
def dp_fedavg(
    base: Algorithm | None = None, clip: float = 1.0, noise: float = 1.0, delta: float = 1e-5, secure: bool = False
) -> Algorithm:
    """Any base algorithm that sends nothing but changes (FedAvg), with differential privacy for whole clients."""
    algorithm = over(base, "dp_fedavg")
    if type(algorithm.sampler) is not Uniform:
        raise UsageError(
            f"dp_fedavg over {algorithm.name}: it draws clients itself, but the base has "
            f"{type(algorithm.sampler).__name__} for that. Use a base that samples uniformly.",
            code="base-unfit",
            base=algorithm.name,
            part=type(algorithm.sampler).__name__,
        )
    if algorithm.split.buffers == "average":  # running statistics would be sent without noise
        algorithm = algorithm.with_buffers("none")
    plain = tuple(Equal() if isinstance(link, ByExamples) else link for link in algorithm.weighting)
    link = NoisySum(clip=clip, noise=noise, delta=delta, secure=secure)
    return replace(algorithm, sampler=Poisson(), weighting=plain, combination=(*algorithm.combination, link))

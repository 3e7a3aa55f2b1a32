"""What noise on a sum over Poisson-sampled clients buys: (epsilon, delta) by Renyi differential privacy.

    rdp(a)   = 1/(a-1) log E_{z ~ N(0, s^2)} [ (1 - q + q exp((2z - 1) / (2 s^2)))^a ]         a > 1
    epsilon  = min over a of  T rdp(a) + log((a-1)/a) - (log delta + log a) / (a-1)

for T rounds, sampling rate q and noise of standard deviation s times the most that one client can change the sum. The
first line is the sampled Gaussian mechanism of Mironov, Talwar, Zhang: Renyi Differential Privacy of the Sampled
Gaussian Mechanism, 2019 (arXiv:1908.10530), Section 3.3; the second is Canonne, Kamath, Steinke: The Discrete Gaussian
for Differential Privacy, NeurIPS 2020 (arXiv:2004.00010), Proposition 12. Two federations are neighbours if one has one
client more than the other.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedatlas.errors import UsageError

ORDERS = (*(1 + x / 10 for x in range(1, 100)), *map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0)
"""The orders a among which the best is taken."""
LEAST_NOISE, MOST_NOISE = 0.05, 1e6
"""With less, one round costs an epsilon of hundreds, and the sum below gets ever more terms; more overflows."""
STEP = 1 / 16
"""Of the sum that stands for the integral, in widths of what changes fastest; such a sum converges very fast."""


@lru_cache(maxsize=4096)
def rdp(order: float, rate: float, noise: float) -> float:
    """Return the Renyi divergence of one round: by the binomial sum at a whole order, else by integration."""
    if rate == 0:
        return 0.0
    if rate == 1:
        return order / (2 * noise**2)
    found = _whole(int(order), rate, noise) if order == int(order) else _between(order, rate, noise)
    return found / (order - 1)


def epsilon(*, noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the epsilon that so many rounds cost at ``delta``; infinity without noise.

    >>> round(epsilon(noise=1.0, rate=0.01, rounds=1000, delta=1e-5), 3)
    2.101
    """
    if not 0 < delta < 1:
        raise UsageError(f"delta must be in (0, 1), got {delta}.", code="out-of-range", got=delta, setting="delta")
    if rounds == 0 or rate == 0:
        return 0.0
    if noise == 0:
        return math.inf
    if not LEAST_NOISE <= noise <= MOST_NOISE:
        raise UsageError(
            f"noise must be 0 or in [{LEAST_NOISE:g}, {MOST_NOISE:g}], got {noise}.",
            code="out-of-range",
            got=noise,
            setting="noise",
        )
    found = (
        rounds * rdp(order, rate, noise) + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order in ORDERS
    )
    return max(0.0, min(found))


def noise_for(target: float, *, rate: float, rounds: int, delta: float) -> float:
    """Return the least noise with which so many rounds cost at most ``target``, to a thousandth, from above."""
    if not 0 < target < math.inf:
        raise UsageError(
            f"epsilon must be a positive number, got {target}.", code="out-of-range", got=target, setting="epsilon"
        )

    def costs(noise: float) -> float:
        return math.inf if noise < LEAST_NOISE else epsilon(noise=noise, rate=rate, rounds=rounds, delta=delta)

    low, high = 0.0, 1.0
    while costs(high) > target:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise UsageError(
                f"no noise up to {MOST_NOISE:g} gives an epsilon of {target} at delta {delta}. Take a larger epsilon.",
                code="out-of-range",
                got=target,
                setting="epsilon",
            )
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if costs(middle) > target else (low, middle)
    return high


def _whole(order: int, rate: float, noise: float) -> float:
    """Return log sum_k binomial(a, k) (1-q)^(a-k) q^k exp((k^2 - k) / (2 s^2))."""
    k = np.arange(order + 1, dtype=np.float64)
    counts = np.array([math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1) for i in k])
    return _log_sum(counts + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * noise**2))


def _between(order: float, rate: float, noise: float) -> float:
    """Return the logarithm of the expectation, as a sum over a fine grid that covers all of its mass."""
    reach = 14 * noise  # beyond it less than e^-98 is left, on either side of the peaks, which are in [0, order]
    step = STEP * min(noise, noise**2)
    z = np.arange(-reach, order + reach + step, step)
    mixed = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
    density = -(z**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    return _log_sum(density + order * mixed) + math.log(step)


def _log_sum(logs: np.ndarray) -> float:
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()))

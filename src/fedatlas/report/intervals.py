"""Intervals of 95 %: of an accuracy from its test examples, and of the difference of two algorithms."""

import math
from collections.abc import Sequence

Z = 1.959964
"""The 97.5 % point of the normal distribution."""


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return Wilson's interval of a share of ``count`` examples.

    centre = (p + z^2 / 2n) / (1 + z^2 / n), half = z / (1 + z^2 / n) sqrt(p (1 - p) / n + z^2 / 4n^2)

    >>> [round(end, 3) for end in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    if count <= 0:
        return 0.0, 1.0
    squared = Z * Z / count
    centre = (share + squared / 2) / (1 + squared)
    half = Z / (1 + squared) * math.sqrt(max(share * (1 - share), 0) / count + squared / (4 * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of at least two values and half of Student's interval of it.

    >>> [round(part, 3) for part in over_seeds([0.1, 0.2, 0.3])]
    [0.2, 0.248]
    """
    from scipy.special import stdtrit  # here, as it takes longer to load than all of this package

    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return mean, float(stdtrit(len(values) - 1, 0.975)) * deviation / math.sqrt(len(values))


def over_examples(one: float, other: float, count: float) -> tuple[float, float]:
    """Return the difference of two accuracies on ``count`` examples, and half its interval as of independent tests.

    >>> [round(part, 3) for part in over_examples(0.6, 0.5, 200)]
    [0.1, 0.097]
    """
    variance = (one * (1 - one) + other * (1 - other)) / max(count, 1)
    return one - other, Z * math.sqrt(max(variance, 0))

"""Whether clients have other shares of the classes than chance gives, and how different they are.

X^2 of the clients x classes table has a known mean and variance if labels are dealt out at random while every client
and every class keeps its number of examples (Haldane, "The mean and variance of chi^2, when used as a test of
homogeneity, when expectations are small", Biometrika 1940; Dawson, "A simplified expression for the variance of the
chi^2-function on a contingency table", Biometrika 1954). A scaled chi-square of that mean and variance gives the
p-value, also where most cells are nearly empty.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Moments(NamedTuple):
    """The mean and the variance of X^2 by chance alone."""

    mean: float
    variance: float


class LabelShares(NamedTuple):
    """How different clients' label shares are."""

    p: float
    """The probability of an X^2 as large as this one, if labels were dealt out at random."""
    rho: float
    """How much likelier than by chance two examples of one client share a label: 0 by chance, 1 one class a client."""

    def alpha(self, num_classes: int) -> float:
        """Return the concentration of the Dirichlet distribution that gives this rho."""
        return (1 / self.rho - 1) / num_classes if self.rho > 0 else float("inf")


def label_shares(counts: Tensor) -> LabelShares:
    """Return the test and the effect for a table of counts (clients, classes)."""
    from scipy.special import gammaincc  # here, as it takes longer to load than all of this package

    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0].double()
    rows, columns = table.sum(1), table.sum(0)
    total = float(table.sum())
    # With fewer there is no variance, and with one client or class there is nothing to compare.
    if min(table.shape) < 2 or total < 4:
        return LabelShares(1.0, 0.0)
    mean, variance = chance(rows, columns)
    found = float(total * ((table.square() / rows[:, None] / columns).sum() - 1))
    p = 1.0 if variance <= 0 else float(gammaincc(mean * mean / variance, found * mean / variance))
    pairs = float((rows * (rows - 1)).sum())
    same = float((table * (table - 1)).sum()) / pairs if pairs else 0.0
    by_chance = float((columns * (columns - 1)).sum()) / (total * (total - 1))
    return LabelShares(p, (same - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0)


def chance(rows: Tensor, columns: Tensor) -> Moments:
    """Return the moments of X^2 for these sums of rows and of columns.

    With N examples, r rows and c columns, v = (r - 1)(N - r) / (N - 1) and w = (N sum 1 / row - r^2) / (N - 2),
    and the same for columns:

        mean = (r - 1)(c - 1) N / (N - 1)
        variance = 2 N / (N - 3) (v_r - w_r)(v_c - w_c) + N^2 / (N - 1) w_r w_c
    """
    total = float(rows.sum())
    r, c = len(rows), len(columns)
    (v_r, w_r), (v_c, w_c) = (_parts(sums, total) for sums in (rows, columns))
    mean = (r - 1) * (c - 1) * total / (total - 1)
    first = 2 * total / (total - 3) * (v_r - w_r) * (v_c - w_c)
    return Moments(mean, first + total**2 / (total - 1) * w_r * w_c)


def _parts(sums: Tensor, total: float) -> tuple[float, float]:
    count = len(sums)
    return (
        (count - 1) * (total - count) / (total - 1),
        (total * float((1 / sums).sum()) - count**2) / (total - 2),
    )

"""A client and its reference by hand, in one direction."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedatlas.atlas.doctor.reference import Pairing, Side


def one_side(count: int, means: Sequence[float], *, inside: float, cells: int = 1) -> Side:
    """Return classes of ``count`` examples each, of variance 1, whose noise has one direction."""
    whole = torch.ones(len(means)).double()
    return Side(
        counts=torch.full((len(means),), count),
        means=torch.tensor(means).double()[:, None],
        variances=whole / count,
        anisotropy=whole,
        inside=inside * whole,
        inside_squares=3 * count * whole,
        cells=cells * whole,
    )


def by_hand(own: Sequence[float], other: Sequence[float], *, inside: float = 9.0, among: bool = False) -> Pairing:
    """Return a client of 10 examples a class against 100 of its reference."""
    scatter: Tensor = torch.ones(len(own)).double()
    return Pairing(
        client=0,
        own=one_side(10, own, inside=inside),
        other=one_side(100, other, inside=99.0),
        spread=torch.ones(1).double(),
        span=torch.ones(1, 1).double(),
        usual=scatter,
        unevenness=2 * scatter,
        expected=torch.zeros(len(own)).double(),
        among=among,
    )

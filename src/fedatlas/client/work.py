"""How much a client trains in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fedatlas.data.federation import Transform
from fedatlas.errors import UsageError, expect_numbers

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """How much a client trains in a round."""

    epochs: int = 1
    steps: int | None = None
    """A fixed number of minibatches in place of epochs; a new shuffled pass begins when one ends."""
    batch_size: int = 32
    augment: Transform | None = None
    """A random change of training images, before the client's own transform."""
    precision: Precision = "float32"
    """What the network computes with while it trains; parameters, losses and steps stay float32."""
    compile: bool = False
    """Let ``torch.compile`` fuse the network's operations, for minibatches of full size."""

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise UsageError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}.")
        if not isinstance(self.compile, bool):
            raise UsageError(f"compile must be true or false, got {self.compile!r}.")
        expect_numbers(self, ("epochs", "steps", "batch_size"), whole=True)
        for title in ("epochs", "steps", "batch_size"):
            value = getattr(self, title)
            if value is not None and value < 1:
                raise UsageError(f"{title} must be at least 1, got {value}.")

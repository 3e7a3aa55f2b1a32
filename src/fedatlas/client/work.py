"""The settings of a client's training in one round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedatlas.errors import UsageError
from fedatlas.parts.checks import check_fields, setting

if TYPE_CHECKING:  # the command line reads these settings before it loads torch
    from fedatlas.data.federation import Transform

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """How much a client trains in a round, and how it computes."""

    epochs: int = setting(1, "passes over a client's data a round", least=1)
    steps: int | None = setting(
        None, "minibatches a round, in place of epochs; a new shuffled pass begins when one ends", least=1
    )
    batch_size: int = setting(32, "examples in a minibatch", least=1)
    least_batch: int = setting(
        1, "the fewest examples of a step: the last minibatch of a pass is left out if it has fewer", least=1
    )
    augment: Transform | None = setting(
        None, "a random change of training images, before the client's own transform, such as `fedatlas.data.Augment()`"
    )
    precision: Precision = setting(
        "float32", "the numbers with which the network computes while it trains; parameters and losses stay float32"
    )
    compile: bool = setting(False, "let `torch.compile` fuse the network's operations, for minibatches of full size")

    def __post_init__(self) -> None:
        check_fields(self, plain=True)
        check_least_batch(self.least_batch, self.batch_size)


def check_least_batch(least: int, batch_size: int) -> None:
    """Raise UsageError if every minibatch would be left out."""
    if least > batch_size:
        raise UsageError(
            f"least_batch must be at most batch_size, which is {batch_size}, got {least}: every minibatch would be "
            "left out. Lower the one or raise the other.",
            code="out-of-range",
            setting="least_batch",
            got=least,
            most=batch_size,
        )

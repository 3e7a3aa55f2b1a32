"""The settings of a client's training in one round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
    augment: Transform | None = setting(
        None, "a random change of training images, before the client's own transform, such as `fedatlas.data.Augment()`"
    )
    precision: Precision = setting(
        "float32", "the numbers with which the network computes while it trains; parameters and losses stay float32"
    )
    compile: bool = setting(False, "let `torch.compile` fuse the network's operations, for minibatches of full size")

    def __post_init__(self) -> None:
        check_fields(self, plain=True)

"""Parts of algorithms that do what the checks must catch."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedatlas import check_algorithm
from fedatlas.errors import AlgorithmCheckError
from fedatlas.parts import (
    Algorithm,
    Batch,
    ClientContext,
    Cohort,
    Disclosure,
    Output,
    Roster,
    ServerRule,
    Tensors,
    Term,
)


def refused(algorithm: Algorithm, check: str, *says: str) -> None:
    with pytest.raises(AlgorithmCheckError) as caught:
        check_algorithm(replace(algorithm, name="bad"))
    message = str(caught.value)
    assert message.startswith(f"bad, check {check!r}: ")
    for part in says:
        assert part in message


@dataclass(frozen=True, kw_only=True)
class Does(Term):
    """A term that does what a test tells it."""

    name: ClassVar[str] = "does"
    act: Callable[[ClientContext], Any] = field(default=lambda local: None, repr=False)

    def begin(self, local: ClientContext) -> None:
        local.scratch[self.name] = {"scale": torch.tensor(float(self.act(local) or 0.0))}

    def loss(self, local: ClientContext, batch: Batch, output: Output) -> Tensor:
        return local.scratch[self.name]["scale"] * output.logits.square().mean()


@dataclass(frozen=True, kw_only=True)
class Sends(Does):
    discloses: ClassVar[tuple[Disclosure, ...]] = (Disclosure("number", "a number"),)
    name: ClassVar[str] = "sends"
    note: Any = field(default=None, repr=False)

    def finish(self, local: ClientContext) -> Tensors:
        return {"number": torch.ones(()) if self.note is None else self.note}


@dataclass(frozen=True, kw_only=True)
class Rule(ServerRule):
    """A rule that does what a test tells it."""

    name: ClassVar[str] = "rule"
    act: Callable[[Tensors, Tensors, Cohort], Tensors | None] = field(default=lambda *_: None, repr=False)

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        return {"count": torch.zeros(2)}

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        return self.act(change, memory, cohort) or change, memory

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from broken_parts import Does, Rule, Sends, refused
from fedatlas.algorithms import ByLoss, fedavg
from fedatlas.parts import (
    Algorithm,
    ClientContext,
    ClientData,
    Cohort,
    Disclosure,
    Extension,
    Roster,
    Sampler,
    Tensors,
    Term,
    Weighting,
)
from fedatlas.testing.check_algorithm import check_algorithm


@dataclass(frozen=True, kw_only=True)
class Leaks(Sends):
    name: ClassVar[str] = "leaks"
    discloses: ClassVar[tuple[Disclosure, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class Introduces(Rule):
    def introduce(self, data: ClientData) -> Tensors:
        return {"labels": data.label_counts}


@dataclass(frozen=True, kw_only=True)
class Surveys(Does):
    surveys: ClassVar[bool] = True

    def survey(self, local: ClientContext) -> Tensors:
        return {"loss": local.received_loss()}


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (fedavg().with_terms(Leaks()), "leaks"),
        (fedavg().with_rules(Introduces()), "rule"),
        (fedavg().with_terms(Surveys()), "does"),
    ],
)
def test_what_leaves_a_client_undeclared_is_caught(algorithm: Algorithm, name: str) -> None:
    refused(algorithm, "disclosures", f"{name!r} is not a part that says something here", "Set discloses")


@dataclass(frozen=True, kw_only=True)
class OneSentence(Rule):
    discloses: ClassVar[Any] = "label counts"


def test_a_disclosure_that_is_a_bare_string_is_caught() -> None:
    refused(fedavg().with_rules(OneSentence()), "disclosures", "OneSentence.discloses is 'label counts'")


@dataclass(frozen=True, kw_only=True)
class Guessing(ByLoss):
    """Declares two models, whatever k is."""

    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure("means", "its mean loss under two models", "losses", (2,), torch.float64),
    )


@dataclass(frozen=True, kw_only=True)
class Silent(ByLoss):
    """Declares nothing."""

    discloses: ClassVar[tuple[Disclosure, ...]] = ()


def test_losses_must_be_declared_as_they_are_asked_for() -> None:
    check_algorithm(replace(fedavg(), sharing=Guessing(k=2)))
    fault = "by_loss means: float64 of shape (3), wanted float64 of shape (2)"
    refused(replace(fedavg(), sharing=Guessing(k=3)), "disclosures", fault, "Set discloses")
    fault = "'by_loss' is not a part that says something here"
    refused(replace(fedavg(), sharing=Silent()), "disclosures", fault, "Set discloses")


@dataclass(frozen=True, kw_only=True)
class SaysMore(Sends):
    """Sends a tensor of another name, type or shape than it declares."""

    name: ClassVar[str] = "says_more"
    what: str = "number"

    def finish(self, local: ClientContext) -> Tensors:
        return {self.what: torch.ones(()) if self.note is None else self.note}


@pytest.mark.parametrize(
    ("term", "fault"),
    [
        (SaysMore(note=torch.ones(2)), r"says_more number: float32 of shape (2), wanted float32 of shape ()"),
        (SaysMore(note=torch.ones(()).double()), "says_more number: float64 of shape (), wanted float32 of shape ()"),
        (SaysMore(what="other"), "says_more did not say 'number'"),
    ],
)
def test_a_tensor_that_is_not_as_declared_is_caught(term: Term, fault: str) -> None:
    refused(fedavg().with_terms(term), "disclosures", fault, "Set discloses")


@dataclass(frozen=True, kw_only=True)
class AlsoIntroduces(Weighting):
    name: ClassVar[str] = "rule"
    discloses: ClassVar[tuple[Disclosure, ...]] = (Disclosure("labels", "label counts", "introduction", ("classes",)),)

    def introduce(self, data: ClientData) -> Tensors:
        return {"labels": data.label_counts}

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        return weights, memory


def test_two_introductions_of_one_name_are_caught() -> None:
    refused(fedavg().with_rules(Introduces()).with_weighting(AlsoIntroduces()), "names", "one overwrites the other")


def test_numbers_that_are_not_finite_are_caught() -> None:
    def divide(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        return {name: tensor / torch.zeros(()) for name, tensor in change.items()}

    refused(fedavg().with_rules(Rule(act=divide)), "finite", "is not finite after round 1")


def test_a_change_of_another_type_is_caught() -> None:
    def widen(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        return {name: tensor.double() for name, tensor in change.items()}

    refused(fedavg().with_rules(Rule(act=widen)), "form", "became torch.float64")


def test_a_rule_that_fails_on_a_missing_answer_is_caught() -> None:
    def insist(change: Tensors, memory: Tensors, cohort: Cohort) -> None:
        answers = {upload.client: upload for upload in cohort.uploads}
        assert all(answers[client] for client in cohort.draws)

    refused(fedavg().with_rules(Rule(act=insist)), "missing answer", "KeyError")


SERVED: list[int] = []


def test_a_lost_client_that_leaves_a_trace_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients run in the order of their ids, so that nobody runs after the last one, unless its answer is lost."""
    monkeypatch.setattr("fedatlas.testing.check_algorithm.fork_available", lambda: False)

    def see(local: ClientContext) -> float:
        if SERVED[0] != local.round:
            SERVED[:] = [local.round, 0]
        if local.data.id == 5:
            SERVED[1] = 1
            return 0
        return SERVED[1]

    SERVED[:] = [-1, 0]
    refused(fedavg().with_terms(Does(act=see)), "missing answer", "leaves a trace")


def test_a_rule_that_fails_on_a_single_answer_is_caught() -> None:
    def spread(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        """The unbiased deviation of one number is 0 / 0."""
        losses = [upload.metrics["loss"] for upload in cohort.uploads]
        mean = sum(losses) / len(losses)
        variance = sum((loss - mean) ** 2 for loss in losses) / (len(losses) - 1)
        return {name: tensor / (1 + variance) for name, tensor in change.items()}

    refused(fedavg().with_rules(Rule(act=spread)), "cohorts", "ZeroDivisionError")


@dataclass(frozen=True, kw_only=True)
class Few(Sampler):
    name: ClassVar[str] = "few"

    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        return [candidates[0]], memory


@dataclass(frozen=True, kw_only=True)
class Anyone(Few):
    def sample(
        self, candidates: Sequence[int], count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        return list(range(len(roster)))[-count:], memory


@pytest.mark.parametrize("sampler", [Few(), Anyone()])
def test_a_sampler_that_draws_too_few_or_held_out_clients_is_caught(sampler: Sampler) -> None:
    refused(replace(fedavg(), sampler=sampler), "sampling", f"{type(sampler).__name__} drew [")


@dataclass(frozen=True, kw_only=True)
class Twins(Rule):
    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        count = memory["count"] + 1
        return change, {"count": count, "again": count}


def test_one_tensor_may_be_remembered_under_two_names() -> None:
    check_algorithm(fedavg().with_rules(Twins()))


def test_what_is_no_tensor_is_caught() -> None:
    def remember(local: ClientContext) -> None:
        local.memory["does"] = {"round": local.round}  # type: ignore[dict-item]

    refused(fedavg().with_terms(Does(act=remember)), "plays", "does round is a int and not a tensor")
    refused(fedavg().with_terms(Sends(note=0.5)), "plays", "sends number is a float and not a tensor")


def test_a_memory_with_a_gradient_is_caught() -> None:
    def remember(local: ClientContext) -> None:
        with torch.enable_grad():
            local.memory["does"] = {name: w * 1 for name, w in local.parameters.items()}

    refused(fedavg().with_terms(Does(act=remember)), "memory", "drags the graph")


@dataclass(frozen=True, kw_only=True)
class Widened(Extension):
    """An extension whose first values come from numpy's global generator, or from torch's, which is seeded for it."""

    numpy: bool = True

    def extend(self, model: nn.Module) -> nn.Module:
        extra = nn.Linear(2, 2)
        if self.numpy:
            nn.init.constant_(extra.weight, float(np.random.rand()))
        model.add_module("extra", extra)
        return model


def test_an_extension_that_draws_from_a_global_generator_is_caught() -> None:
    refused(replace(fedavg(), extensions=(Widened(),)), "extensions", "extra.weight starts with other values")
    check_algorithm(replace(fedavg(), extensions=(Widened(numpy=False),)))


class Loose(Term):
    name: ClassVar[str] = "loose"


@dataclass(kw_only=True)
class Mutable(Term):
    name: ClassVar[str] = "mutable"


@dataclass(frozen=True, kw_only=True)
class Function(Term):
    name: ClassVar[str] = "function"
    act: Callable[[], int] = lambda: 1


@dataclass(frozen=True, kw_only=True)
class Personal(Term):
    name: ClassVar[str] = "personal"


@pytest.mark.parametrize(
    ("term", "check", "says"),
    [
        (Loose(), "description", "Loose is not a frozen dataclass"),
        (Mutable(), "description", "Mutable is not a frozen dataclass"),
        (Function(), "description", "no lasting name"),
        (Personal(), "names", "Personal is named 'personal'"),
    ],
)
def test_a_part_that_does_not_describe_itself_is_caught(term: Term, check: str, says: str) -> None:
    refused(fedavg().with_terms(term), check, says)

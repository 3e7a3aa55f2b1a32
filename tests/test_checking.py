import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedatlas.aggregation import ServerRule
from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import fedavg
from fedatlas.checking import check_algorithm
from fedatlas.client import ClientData, Local
from fedatlas.errors import AlgorithmCheckError, FedatlasError, UsageError
from fedatlas.objectives import Batch, Output, Term
from fedatlas.rehearsal import tiny_federation
from fedatlas.sampling import Sampler
from fedatlas.types import Cohort, Roster, Tensors
from fedatlas.weighting import Weighting
from tiny import Norms, blob_federation


def _refused(algorithm: Algorithm, check: str, *says: str) -> None:
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
    act: Callable[[Local], Any] = field(default=lambda local: None, repr=False)

    def begin(self, local: Local) -> None:
        local.scratch[self.name] = {"scale": torch.tensor(float(self.act(local) or 0.0))}

    def loss(self, local: Local, batch: Batch, output: Output) -> Tensor:
        return local.scratch[self.name]["scale"] * output.logits.square().mean()


@dataclass(frozen=True, kw_only=True)
class Sends(Does):
    discloses: ClassVar[tuple[str, ...]] = ("a number",)
    name: ClassVar[str] = "sends"
    note: Any = field(default=None, repr=False)

    def finish(self, local: Local) -> Tensors:
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


def test_a_sound_recipe_passes_on_both_federations_and_on_ones_own() -> None:
    algorithm = fedavg().with_terms(Sends()).with_rules(Rule())
    check_algorithm(algorithm)
    check_algorithm(algorithm, kind="images")
    check_algorithm(algorithm, federation=blob_federation(num_clients=3), model=Norms)
    check_algorithm(algorithm, federation=blob_federation(num_clients=1), model="mlp")


def test_the_error_is_one_of_fedatlas() -> None:
    assert issubclass(AlgorithmCheckError, FedatlasError)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown kind of tiny federation 'image'\. Did you mean 'images'"):
        check_algorithm(fedavg(), kind="image")  # type: ignore[arg-type]


def test_tiny_federations_hold_the_awkward_clients() -> None:
    for kind in ("features", "images"):
        federation = tiny_federation(kind)
        assert sorted(len(client.train) for client in federation)[0] == 1
        assert any(int((federation.label_counts(i) > 0).sum()) == 1 < len(c.train) for i, c in enumerate(federation))
        assert len(federation.training_ids) == len(federation) - 2


def test_global_generators_are_left_as_they_were() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    check_algorithm(fedavg())
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


@pytest.mark.parametrize(
    "draw",
    [lambda _: torch.rand(()), lambda _: np.random.rand(), lambda _: random.random()],
    ids=["torch", "numpy", "py"],
)
def test_a_term_that_draws_from_a_global_generator_is_caught(draw: Callable[[Local], Any]) -> None:
    _refused(fedavg().with_terms(Does(act=draw)), "repeats", "from one seed differ", "never from a global one")


def test_a_rule_that_draws_from_a_global_generator_is_caught() -> None:
    def noise(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        return {name: tensor + torch.randn_like(tensor) for name, tensor in change.items()}

    _refused(fedavg().with_rules(Rule(act=noise)), "repeats")


@dataclass(frozen=True, kw_only=True)
class Counting(Does):
    """Remembers on itself."""

    name: ClassVar[str] = "counting"
    seen: dict[str, int] = field(default_factory=dict)

    def begin(self, local: Local) -> None:
        self.seen[local.data.name] = self.seen.get(local.data.name, 0) + 1
        local.scratch[self.name] = {"scale": torch.tensor(float(self.seen[local.data.name]))}


def test_a_term_that_remembers_on_itself_is_caught() -> None:
    _refused(fedavg().with_terms(Counting()), "repeats", "Counting changed itself while it ran", "local.memory")


SERVED: list[int] = []


def test_a_term_that_remembers_in_its_process_is_caught() -> None:
    def serve(local: Local) -> float:
        if SERVED and SERVED[0] != local.round:
            SERVED.clear()
        SERVED.append(local.round)
        return len(SERVED)

    SERVED.clear()
    SERVED.append(-1)
    _refused(fedavg().with_terms(Does(act=serve)), "workers", "two workers do not give what one gives")


@dataclass(frozen=True, kw_only=True)
class HiddenMomentum(ServerRule):
    """Starts anew at init(), but keeps its velocity where no checkpoint finds it."""

    name: ClassVar[str] = "hidden_momentum"
    velocity: Tensors = field(default_factory=dict, repr=False)

    def init(self, shared: Tensors, roster: Roster) -> Tensors:
        self.velocity.clear()
        return {}

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        for name, tensor in change.items():
            self.velocity[name] = 0.5 * self.velocity.get(name, torch.zeros_like(tensor)) + tensor
        return dict(self.velocity), memory


def test_a_rule_whose_state_no_checkpoint_holds_is_caught() -> None:
    _refused(fedavg().with_rules(HiddenMomentum()), "resumes", "stopped and resumed differs")


def _in_place(change: Tensors, memory: Tensors, cohort: Cohort) -> None:
    memory["count"] += 1


def _on_answer(change: Tensors, memory: Tensors, cohort: Cohort) -> None:
    next(iter(cohort.uploads[0].change.values())).zero_()


def _on_model(change: Tensors, memory: Tensors, cohort: Cohort) -> None:
    next(iter(cohort.shared.values())).add_(1)


@pytest.mark.parametrize(
    ("act", "where"),
    [
        (_in_place, "server memory, server/rule count"),
        (_on_answer, "change of client"),
        (_on_model, "shared "),
    ],
)
def test_a_rule_that_changes_what_it_was_given_is_caught(act: Callable[..., None], where: str) -> None:
    _refused(fedavg().with_rules(Rule(act=act)), "received tensors", "the server changed", where)


def _remember_in_place(local: Local) -> None:
    local.memory.setdefault("does", {"count": torch.zeros(1)})["count"] += 1


def test_a_term_that_changes_its_memory_in_place_is_caught() -> None:
    _refused(fedavg().with_terms(Does(act=_remember_in_place)), "received tensors", "memory of client", "does count")


@dataclass(frozen=True, kw_only=True)
class Told(Rule):
    name: ClassVar[str] = "does"

    def note(self, memory: Tensors, client: Any) -> Tensors:
        return {"advice": torch.zeros(1)}


def test_a_term_that_changes_the_servers_note_is_caught() -> None:
    term = Does(act=lambda local: local.notes["does"]["advice"].add_(1).item())
    _refused(fedavg().with_terms(term).with_rules(Told()), "received tensors", "note to", "does advice")


def test_a_term_that_changes_the_examples_is_caught() -> None:
    def centre(local: Local) -> None:
        local.data.inputs[local.data.client.train] -= 1

    _refused(fedavg().with_terms(Does(act=centre)), "data", "examples were changed in place")


@dataclass(frozen=True, kw_only=True)
class Leaks(Sends):
    name: ClassVar[str] = "leaks"
    discloses: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class Introduces(Rule):
    def introduce(self, data: ClientData) -> Tensors:
        return {"labels": data.label_counts}


@dataclass(frozen=True, kw_only=True)
class Surveys(Does):
    surveys: ClassVar[bool] = True

    def survey(self, local: Local) -> Tensors:
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
    _refused(algorithm, "disclosures", f"under the name {name!r}", "Set discloses")


@dataclass(frozen=True, kw_only=True)
class OneSentence(Rule):
    discloses: ClassVar[Any] = "label counts"


def test_a_disclosure_that_is_a_bare_string_is_caught() -> None:
    _refused(fedavg().with_rules(OneSentence()), "disclosures", "OneSentence.discloses is 'label counts'")


@dataclass(frozen=True, kw_only=True)
class AlsoIntroduces(Weighting):
    name: ClassVar[str] = "rule"
    discloses: ClassVar[tuple[str, ...]] = ("label counts",)

    def introduce(self, data: ClientData) -> Tensors:
        return {"labels": data.label_counts}

    def weigh(self, weights: Tensor, cohort: Cohort, memory: Tensors) -> tuple[Tensor, Tensors]:
        return weights, memory


def test_two_introductions_of_one_name_are_caught() -> None:
    _refused(fedavg().with_rules(Introduces()).with_weighting(AlsoIntroduces()), "names", "one overwrites the other")


def test_numbers_that_are_not_finite_are_caught() -> None:
    def divide(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        return {name: tensor / torch.zeros(()) for name, tensor in change.items()}

    _refused(fedavg().with_rules(Rule(act=divide)), "finite", "is not finite after round 1")


def test_a_change_of_another_type_is_caught() -> None:
    def widen(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        return {name: tensor.double() for name, tensor in change.items()}

    _refused(fedavg().with_rules(Rule(act=widen)), "form", "became torch.float64")


def test_a_rule_that_fails_on_a_missing_answer_is_caught() -> None:
    def insist(change: Tensors, memory: Tensors, cohort: Cohort) -> None:
        answers = {upload.client: upload for upload in cohort.uploads}
        assert all(answers[client] for client in cohort.draws)

    _refused(fedavg().with_rules(Rule(act=insist)), "missing answer", "KeyError")


def test_a_lost_client_that_leaves_a_trace_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients run in the order of their ids, so that nobody runs after the last one, unless its answer is lost."""
    monkeypatch.setattr("fedatlas.checking.fork_available", lambda: False)

    def see(local: Local) -> float:
        if SERVED[0] != local.round:
            SERVED[:] = [local.round, 0]
        if local.data.id == 5:
            SERVED[1] = 1
            return 0
        return SERVED[1]

    SERVED[:] = [-1, 0]
    _refused(fedavg().with_terms(Does(act=see)), "missing answer", "leaves a trace")


def test_a_rule_that_fails_on_a_single_answer_is_caught() -> None:
    def spread(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        """The unbiased deviation of one number is 0 / 0."""
        losses = [upload.metrics["loss"] for upload in cohort.uploads]
        mean = sum(losses) / len(losses)
        variance = sum((loss - mean) ** 2 for loss in losses) / (len(losses) - 1)
        return {name: tensor / (1 + variance) for name, tensor in change.items()}

    _refused(fedavg().with_rules(Rule(act=spread)), "cohorts", "ZeroDivisionError")


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
    _refused(replace(fedavg(), sampler=sampler), "sampling", f"{type(sampler).__name__} drew [")


@dataclass(frozen=True, kw_only=True)
class Twins(Rule):
    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        count = memory["count"] + 1
        return change, {"count": count, "again": count}


def test_one_tensor_may_be_remembered_under_two_names() -> None:
    check_algorithm(fedavg().with_rules(Twins()))


def test_what_is_no_tensor_is_caught() -> None:
    def remember(local: Local) -> None:
        local.memory["does"] = {"round": local.round}  # type: ignore[dict-item]

    _refused(fedavg().with_terms(Does(act=remember)), "plays", "does round is a int and not a tensor")
    _refused(fedavg().with_terms(Sends(note=0.5)), "plays", "sends number is a float and not a tensor")


def test_a_memory_with_a_gradient_is_caught() -> None:
    def remember(local: Local) -> None:
        with torch.enable_grad():
            local.memory["does"] = {name: w * 1 for name, w in local.parameters.items()}

    _refused(fedavg().with_terms(Does(act=remember)), "memory", "drags the graph")


@dataclass(frozen=True, kw_only=True)
class Widened:
    """An extension whose first values come from numpy's global generator, or from torch's, which is seeded for it."""

    numpy: bool = True

    def __call__(self, model: nn.Module) -> nn.Module:
        extra = nn.Linear(2, 2)
        if self.numpy:
            nn.init.constant_(extra.weight, float(np.random.rand()))
        model.add_module("extra", extra)
        return model


def test_an_extension_that_draws_from_a_global_generator_is_caught() -> None:
    _refused(replace(fedavg(), extensions=(Widened(),)), "extensions", "extra.weight starts with other values")
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
    _refused(fedavg().with_terms(term), check, says)

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from broken_parts import Does, Rule, Sends, refused
from fedatlas.algorithms import fedavg
from fedatlas.errors import AlgorithmCheckError, FedatlasError, UsageError
from fedatlas.parts import ClientContext, Cohort, Roster, ServerRule, Tensors
from fedatlas.testing.check_algorithm import check_algorithm
from fedatlas.testing.tiny import tiny_federation
from raising import raises
from tiny import Norms, blob_federation


def test_a_sound_recipe_passes_on_both_federations_and_on_ones_own() -> None:
    algorithm = fedavg().with_terms(Sends()).with_rules(Rule())
    check_algorithm(algorithm)
    check_algorithm(algorithm, kind="images")
    check_algorithm(algorithm, federation=blob_federation(num_clients=3), model=Norms)
    check_algorithm(algorithm, federation=blob_federation(num_clients=1), model="mlp")


def test_the_error_is_one_of_fedatlas() -> None:
    assert issubclass(AlgorithmCheckError, FedatlasError)


def test_an_unknown_kind_isrefused() -> None:
    with raises(UsageError, "unknown-name", kind="kind of tiny federation", got="image"):
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
def test_a_term_that_draws_from_a_global_generator_is_caught(draw: Callable[[ClientContext], Any]) -> None:
    refused(fedavg().with_terms(Does(act=draw)), "repeats", "from one seed differ", "never from a global one")


def test_a_rule_that_draws_from_a_global_generator_is_caught() -> None:
    def noise(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
        return {name: tensor + torch.randn_like(tensor) for name, tensor in change.items()}

    refused(fedavg().with_rules(Rule(act=noise)), "repeats")


@dataclass(frozen=True, kw_only=True)
class Counting(Does):
    """Remembers on itself."""

    name: ClassVar[str] = "counting"
    seen: dict[str, int] = field(default_factory=dict)

    def begin(self, local: ClientContext) -> None:
        self.seen[local.data.name] = self.seen.get(local.data.name, 0) + 1
        local.scratch[self.name] = {"scale": torch.tensor(float(self.seen[local.data.name]))}


def test_a_term_that_remembers_on_itself_is_caught() -> None:
    refused(fedavg().with_terms(Counting()), "repeats", "Counting changed itself while it ran", "local.memory")


SERVED: list[int] = []


def test_a_term_that_remembers_in_its_process_is_caught() -> None:
    def serve(local: ClientContext) -> float:
        if SERVED and SERVED[0] != local.round:
            SERVED.clear()
        SERVED.append(local.round)
        return len(SERVED)

    SERVED.clear()
    SERVED.append(-1)
    refused(fedavg().with_terms(Does(act=serve)), "workers", "two workers do not give what one gives")


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
    refused(fedavg().with_rules(HiddenMomentum()), "resumes", "stopped and resumed differs")


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
    refused(fedavg().with_rules(Rule(act=act)), "received tensors", "the server changed", where)


def _add_up(change: Tensors, memory: Tensors, cohort: Cohort) -> Tensors:
    own = [upload.change for upload in cohort.uploads]
    return {name: tensor + 0.1 * sum(one[name] for one in own) for name, tensor in change.items()}


def test_a_rule_that_reads_single_changes_and_does_not_say_so_is_caught() -> None:
    refused(fedavg().with_rules(Rule(act=_add_up)), "single uploads", "Set reads_uploads = True")


@dataclass(frozen=True, kw_only=True)
class Reading(Rule):
    name: ClassVar[str] = "reading"
    reads_uploads: ClassVar[bool] = True


def test_a_rule_that_says_that_it_reads_single_changes_passes() -> None:
    check_algorithm(fedavg().with_rules(Reading(act=_add_up)))


def _remember_in_place(local: ClientContext) -> None:
    local.memory.setdefault("does", {"count": torch.zeros(1)})["count"] += 1


def test_a_term_that_changes_its_memory_in_place_is_caught() -> None:
    refused(fedavg().with_terms(Does(act=_remember_in_place)), "received tensors", "memory of client", "does count")


@dataclass(frozen=True, kw_only=True)
class Told(Rule):
    name: ClassVar[str] = "does"

    def note(self, memory: Tensors, client: Any) -> Tensors:
        return {"advice": torch.zeros(1)}


def test_a_term_that_changes_the_servers_note_is_caught() -> None:
    term = Does(act=lambda local: local.notes["does"]["advice"].add_(1).item())
    refused(fedavg().with_terms(term).with_rules(Told()), "received tensors", "note to", "does advice")


def test_a_term_that_changes_the_examples_is_caught() -> None:
    def centre(local: ClientContext) -> None:
        local.data.inputs[local.data.client.train] -= 1

    refused(fedavg().with_terms(Does(act=centre)), "data", "examples were changed in place")


def test_the_parts_on_their_page_pass() -> None:
    page = (Path(__file__).parents[2] / "docs/parts.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(re.findall("check_algorithm", "".join(blocks))) == 6
    exec("\n".join(blocks), {"__name__": "page"})

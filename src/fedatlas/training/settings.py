"""The settings of a training: every name, type, default and help text, once.

``Settings`` has all of them. Its fields come from the classes whose objects the rooms below take: ``LocalWork`` (a
client's training), ``TrainingPlan`` (rounds and evaluations) and ``Machine`` (where it runs). The config's section
``[training]``, the command line's options and the table in docs/configs.md read the same fields.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from fedatlas.client.work import LocalWork, check_least_batch
from fedatlas.engines.registry import AUTO, ENGINES
from fedatlas.errors import UsageError, expect, unknown_name
from fedatlas.parts.checks import check_fields, setting
from fedatlas.seeds import Seeds

if TYPE_CHECKING:  # the command line reads these settings before it loads torch
    from fedatlas.parts.metric import Metric
    from fedatlas.parts.optimizer import LocalOptimizer
    from fedatlas.training.model import Model

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long a run goes, who takes part, and how often it is evaluated and saved."""

    rounds: int = setting(20, "rounds of training", least=1)
    cohort: int | float | None = setting(
        None, "clients a round: a number, or a fraction of those that may train, such as 0.1; by default all"
    )
    evaluate_every: int = setting(1, "rounds between evaluations; the last round is always evaluated", least=1)
    test_own: bool = setting(
        False, "in evaluated rounds, also test each client's own model after its training, before the server averages"
    )
    metrics: Sequence[str | Metric] = setting(
        [], "metrics beside accuracy and loss, a list of names from `fedatlas list metrics`"
    )
    intervals: bool = setting(False, "give each metric of each client a 95 % interval, from its test examples")
    checkpoint_every: int | None = setting(
        None,
        "rounds between checkpoints; by default the clock decides, so that saving takes at most 5 % of the time",
        least=1,
    )
    memory_limit: float | None = setting(
        None,
        "gigabytes of the clients' memory held in RAM, the rest is in the run's folder; by default a quarter of the "
        "RAM. It changes no bit",
        least=0,
    )

    def __post_init__(self) -> None:
        check_fields(self, plain=True)

    def memory_bytes(self) -> int:
        """Return how many bytes of the clients' memory may be held in RAM."""
        from fedatlas.data.memory import physical_memory

        return physical_memory() // 4 if self.memory_limit is None else int(self.memory_limit * 1e9)

    def cohort_size(self, num_clients: int) -> int:
        """Return the number of clients a round."""
        if self.cohort is None:
            return num_clients
        if isinstance(self.cohort, float):
            if not 0 < self.cohort <= 1:
                raise UsageError(
                    f"cohort as a fraction must be in (0, 1], got {self.cohort}.", code="cohort-size", got=self.cohort
                )
            return max(1, math.floor(self.cohort * num_clients + 0.5))
        check_cohort_size(self.cohort, num_clients)
        return self.cohort


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where and how the clients of a simulation run; apart from the engine ``vmap``, it changes no bit."""

    device: str = setting("cpu", "cpu, cuda or cuda:N")
    workers: int | None = setting(None, "processes on a CPU; by default one for each core", least=1)
    engine: str = setting(
        AUTO,
        "how clients run: auto, or loop (one by one), workers (processes), graph (recorded steps), vmap (all together)",
    )
    profile: bool = setting(False, "let clients measure where the time of a round goes, for `run.profile()`")

    def __post_init__(self) -> None:
        check_fields(self, plain=True)
        if self.engine != AUTO and self.engine not in ENGINES:
            raise unknown_name(ENGINES.kind, self.engine, (AUTO, *ENGINES))


@dataclass(frozen=True, kw_only=True)
class Settings(Machine, TrainingPlan, LocalWork):
    """Everything that defines a run besides its data and its algorithm.

    >>> settings = Settings(rounds=5, steps=10, device="cpu")
    >>> settings.plan.rounds, settings.work.steps, settings.seeds.model
    (5, 10, 0)
    """

    model: Model | None = setting(
        None,
        "a name from `fedatlas list models`, a module, or a function that makes one; by default one that suits data "
        "and algorithm",
    )
    model_options: Mapping[str, Any] = setting({}, "options of a model that is given by name")
    optimizer: LocalOptimizer | None = setting(None, "how a client steps, in place of the algorithm's choice")
    seed: int | Seeds = setting(0, "the seed of the partition, model, sampling and batches, or `fedatlas.Seeds(...)`")

    def __post_init__(self) -> None:
        check_fields(self, plain=True)
        check_least_batch(self.least_batch, self.batch_size)
        expect(
            self.seed, (Seeds, numbers.Integral), "seed must be a whole number or fedatlas.Seeds(...)", "Write seed=0."
        )

    @property
    def work(self) -> LocalWork:
        """A client's training in a round."""
        return _part(self, LocalWork)

    @property
    def plan(self) -> TrainingPlan:
        """The rounds and evaluations."""
        return _part(self, TrainingPlan)

    @property
    def machine(self) -> Machine:
        """The device, workers and engine."""
        return _part(self, Machine)

    @property
    def seeds(self) -> Seeds:
        """The four seeds."""
        return self.seed if isinstance(self.seed, Seeds) else Seeds.of(int(self.seed))


class Shortcuts(TypedDict, total=False):
    """The settings that ``train`` also takes as keywords, since nearly every call sets some of them."""

    model: Model | None
    model_options: Mapping[str, Any]
    optimizer: LocalOptimizer | None
    rounds: int
    cohort: int | float | None
    epochs: int
    batch_size: int
    seed: int | Seeds
    device: str
    workers: int | None


def with_shortcuts(settings: Settings | None, shortcuts: Mapping[str, Any]) -> Settings:
    """Return settings with some of them replaced by keywords; raise an error for a keyword that is not a shortcut."""
    known = Shortcuts.__annotations__
    for name in shortcuts:
        if name in Settings.__dataclass_fields__ and name not in known:
            raise UsageError(
                f"{name} is not a keyword of train. Write settings=fedatlas.Settings({name}=...).",
                code="not-a-shortcut",
                got=name,
                known=sorted(known),
            )
        if name not in known:
            raise unknown_name("setting", name, Settings.__dataclass_fields__)
    given = {own.name: getattr(settings, own.name) for own in fields(Settings)} if settings is not None else {}
    return Settings(**{**given, **shortcuts})


def check_cohort_size(cohort_size: int, num_clients: int) -> None:
    """Raise an error if the federation cannot fill a cohort."""
    if not 1 <= cohort_size <= num_clients:
        raise UsageError(
            f"cohort must be between 1 and the {num_clients} clients that may train, got {cohort_size}. "
            "Lower the cohort, hold out fewer clients, or use more of them.",
            code="cohort-size",
            got=cohort_size,
            most=num_clients,
        )


def _part(settings: Settings, kind: type[T]) -> T:
    return kind(**{own.name: getattr(settings, own.name) for own in fields(kind)})  # type: ignore[arg-type]

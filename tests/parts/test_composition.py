"""Parts that would make each other wrong are refused, however they come together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedatlas.algorithms import (
    DynamicDrift,
    FairStep,
    MeanHeadGradient,
    Momentum,
    capped,
    cfl,
    clipped,
    clustered,
    dp_fedavg,
    fedavg,
    feddisco,
    feddyn,
    fedgr,
    fediir,
    fedper,
    ifca,
    krum,
    median,
    multi_krum,
    qffl,
    scaffold,
    trimmed_mean,
)
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sampler import Sampler
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.types import Cohort, Roster, Tensors
from fedatlas.parts.weighting import ByExamples, Equal
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play


def test_weights_over_clustered_draws_are_refused_in_both_orders() -> None:
    with raises(UsageError, "base-unfit", part="Discrepancy"):
        feddisco(clustered(feddyn()))
    with raises(UsageError, "base-unfit", part="Discrepancy"):
        clustered(feddisco(feddyn()))
    with raises(UsageError, "base-unfit", part="GroupLoss"):
        fedgr(clustered())
    with raises(UsageError, "base-unfit", part="ByExamples"):
        replace(clustered(), weighting=(ByExamples(),))


def test_a_rule_that_drops_an_earlier_one_is_refused() -> None:
    with raises(UsageError, "settings-conflict", part="FairStep", got="Momentum"):
        replace(qffl(), server=(Momentum(), FairStep()))
    with raises(UsageError, "settings-conflict", part="FairStep", got="DynamicDrift"):
        replace(qffl(), server=(MeanHeadGradient(), DynamicDrift(), FairStep()))


FIRST = (dp_fedavg, median, trimmed_mean, krum, multi_krum, clipped, capped)
"""What must see each client's change, or its weight, before anything else does."""


@pytest.mark.parametrize("part", FIRST, ids=lambda part: part.__name__)
def test_a_rule_that_adds_single_changes_to_the_model_has_no_private_or_robust_part_before_it(
    part: Callable[..., Algorithm],
) -> None:
    with raises(UsageError, "base-unfit", base=f"{part.__name__}+feddyn") as caught:
        part(feddyn())
    assert "DynamicDrift also adds each client's own change to the model" in str(caught.value)
    with raises(UsageError, "base-unfit"):
        part(feddyn().with_rules(Momentum()))
    with raises(UsageError, "base-unfit"):
        part().with_rules(DynamicDrift())
    with raises(UsageError, "base-unfit"):
        part(qffl())
    if part is not dp_fedavg:
        with raises(UsageError, "base-unfit"):
            ifca(base=part(feddyn()))


@dataclass(frozen=True, kw_only=True)
class Peeking(ServerRule):
    """Reads something of each upload, and does not say so."""

    name: ClassVar[str] = "peeking"
    wanted: str = "change"

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        assert all(getattr(upload, self.wanted) is not None for upload in cohort.uploads)
        return change, memory


@pytest.mark.parametrize(
    ("base", "wanted"),
    [(median(), "change"), (clipped(), "buffers"), (dp_fedavg(), "change"), (dp_fedavg(), "metrics")],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_rule_that_reads_single_uploads_past_a_defence_without_saying_so_is_stopped(
    base: Algorithm, wanted: str
) -> None:
    with raises(UsageError, "base-unfit", part="Peeking"):
        play(base.with_rules(Peeking(wanted=wanted)), Norms(), blob_federation())


def test_what_a_rule_may_read_of_an_upload_stays_open_to_it() -> None:
    for base, wanted in (
        (median(), "num_examples"),
        (median(), "notes"),
        (dp_fedavg(), "client"),
        (fedavg(), "change"),
    ):
        play(base.with_rules(Peeking(wanted=wanted)), Norms(), blob_federation())


def test_a_sampler_and_groups_that_look_at_single_changes_bring_a_warning() -> None:
    federation = blob_federation()
    (line,) = clipped(clustered()).check_clients(federation)
    assert "ClusteredBySimilarity looks at each client's own change, before Clipped" in line
    assert any("BySplitting looks at" in line for line in cfl(base=median()).check_clients(federation))
    assert not any("looks at" in line for line in median(scaffold()).check_clients(federation))
    assert clustered().check_clients(federation) == clipped().check_clients(federation) == []


def test_rules_that_lose_nothing_may_come_together() -> None:
    assert replace(qffl(), server=(FairStep(), Momentum())).server[1] == Momentum()
    assert replace(qffl(), server=(MeanHeadGradient(), FairStep())).server[0] == MeanHeadGradient()


@dataclass(frozen=True, kw_only=True)
class TwiceTheFirst(Sampler):
    """Draws the first client twice and the second once."""

    name: ClassVar[str] = "twice_the_first"

    def sample(
        self, candidates: object, count: int, roster: Roster, memory: Tensors, rng: np.random.Generator
    ) -> tuple[list[int], Tensors]:
        return [0, 0, 1], memory


@pytest.mark.parametrize(("link", "first"), [(ByExamples(), 2 / 5), (Equal(), 2 / 3)])
def test_a_client_that_is_drawn_twice_counts_twice(link: ByExamples | Equal, first: float) -> None:
    """One example drawn twice against three examples drawn once: 2 to 3 by examples, 2 to 1 if all count the same."""
    federation = line_federation(([2], [0]), ([2] * 3, [1] * 3), ([2], [0]))
    algorithm = replace(fedavg(), sampler=TwiceTheFirst(), weighting=(link,))
    _, records, _ = play(algorithm, Line(), federation, cohort=3)
    assert records[0].weights == pytest.approx({0: first, 1: 1 - first})


def test_fediir_with_classifiers_that_stay_home_is_refused_before_it_trains() -> None:
    with raises(UsageError, "split-unfit", part="GradientAlignment"):
        play(replace(fediir(), split=fedper().split), Norms(), blob_federation())

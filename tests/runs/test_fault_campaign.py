"""The campaign of faults: small by default, whole with --faults."""

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.faults import BAD, FAULTS, REFUSED, RIGHT, Campaign, Outcomes, damage, fail_each, kill


@pytest.fixture(scope="module", params=["saved every round", "saved beside"])
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    settings = ("training.checkpoint_every=1",) if request.param == "saved every round" else ()
    return Campaign(tmp_path_factory.mktemp("campaign") / "runs", settings=settings)


def _assert_sound(campaign: Campaign, run: Callable[[], Outcomes], least: int) -> Outcomes:
    campaign.examples.clear()
    found = run()
    assert sum(found.values()) >= least
    assert not any(found[bad] for bad in BAD), (found, campaign.examples)
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_once_costs_no_bit(fault: str, campaign: Campaign) -> None:
    every = 400 if fault == "an allocation" else 11
    found = _assert_sound(campaign, lambda: fail_each(campaign, fault, every), 2)
    assert found.keys() == {RIGHT}  # the last checkpoint is always whole


def test_damaged_folders_are_refused_or_do_no_harm(campaign: Campaign) -> None:
    found = _assert_sound(campaign, lambda: damage(campaign, 8), 8)
    assert found[REFUSED] >= 4


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_once_costs_no_bit(fault: str, campaign: Campaign) -> None:
    _assert_sound(campaign, lambda: fail_each(campaign, fault, 1), 20)


@pytest.mark.faults
def test_many_damaged_folders_are_refused_or_do_no_harm(campaign: Campaign) -> None:
    _assert_sound(campaign, lambda: damage(campaign, 250), 250)  # for each of the two ways to save


@pytest.mark.faults
def test_a_hundred_kills_cost_no_bit(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path)
    _assert_sound(campaign, lambda: kill(campaign, 100), 100)

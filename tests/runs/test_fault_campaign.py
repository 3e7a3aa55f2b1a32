"""The campaign of faults: small by default, whole with --faults."""

from collections.abc import Callable
from pathlib import Path

import pytest
from campaign import BAD, REFUSED, RIGHT, Campaign, Outcomes
from failing import FAULTS, fail_each
from harming import damage, forge, kill


@pytest.fixture(scope="module", params=["saved every round", "saved beside"])
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    settings = ("training.checkpoint_every=1",) if request.param == "saved every round" else ()
    return Campaign(tmp_path_factory.mktemp("campaign") / "runs", settings=settings)


Tally = Callable[[str, Outcomes], None]


def _assert_sound(campaign: Campaign, found: Outcomes, least: int) -> None:
    assert sum(found.values()) >= least
    assert not any(found[bad] for bad in BAD), (found, campaign.examples)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_once_costs_no_bit(fault: str, campaign: Campaign) -> None:
    every = {"an allocation": 400, "an allocation of the check": 50}.get(fault, 11)
    _assert_sound(campaign, found := fail_each(campaign, fault, every), 2)
    assert found.keys() == {RIGHT}  # the last checkpoint is always whole


def test_damaged_folders_are_refused_or_do_no_harm(campaign: Campaign) -> None:
    _assert_sound(campaign, found := damage(campaign, 8), 8)
    assert found[REFUSED] >= 4


def test_a_few_forged_folders_are_refused_or_taken_as_they_are(campaign: Campaign) -> None:
    _assert_sound(campaign, forge(campaign, 8), 8)


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_once_costs_no_bit(fault: str, campaign: Campaign, tally: Tally) -> None:
    tally(f"{fault} fails", found := fail_each(campaign, fault, 1))
    _assert_sound(campaign, found, 15)


@pytest.mark.faults
def test_many_damaged_folders_are_refused_or_do_no_harm(campaign: Campaign, tally: Tally) -> None:
    tally("a file of the run is damaged", found := damage(campaign, 250))  # for each of the two ways to save
    _assert_sound(campaign, found, 250)


@pytest.mark.faults
def test_forged_folders_are_refused_or_taken_as_they_are(campaign: Campaign, tally: Tally) -> None:
    tally("a file and its checksum are altered", found := forge(campaign, 250))
    _assert_sound(campaign, found, 250)


@pytest.mark.faults
def test_a_hundred_kills_cost_no_bit(tmp_path: Path, tally: Tally) -> None:
    campaign = Campaign(tmp_path)
    tally("the process is killed", found := kill(campaign, 100))
    _assert_sound(campaign, found, 100)

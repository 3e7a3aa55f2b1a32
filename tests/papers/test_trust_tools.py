"""The tools that measure poison, privacy and leakage measure what they say."""

import math

import pytest
import torch

from fedatlas.algorithms import fedavg, median
from fedatlas.atlas import DSAIGN
from fedatlas.parts import Upload
from papers.tools import dp, leakage, poison


@pytest.mark.parametrize(
    ("attack", "change", "size"),
    [("size", 2.0, 10**14), ("scale", -2000.0, 5), ("huge", 1e30, 5), ("flip", -2.0, 5), ("both", -2.0, 10**14)],
)
def test_an_attacker_sends_this(attack: str, change: float, size: int) -> None:
    sent = poison.spoiled(
        Upload(client=9, num_examples=5, num_steps=1, change={"w": torch.tensor([2.0])}, buffers={}), attack
    )
    assert sent.change["w"].item() == pytest.approx(change)
    assert sent.num_examples == size


def test_an_attack_harms_a_mean_and_not_a_median(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(poison.SETTINGS, "digits", poison.SETTINGS["digits"]._replace(rounds=6))
    federation = poison.make_federation("digits", None, 3)
    harmed, held = (poison.accuracy(federation, "digits", one, "scale", 1, 3) for one in (fedavg(), median()))
    assert held > harmed + 0.2


def test_the_table_of_poison_has_means_and_says_what_broke() -> None:
    cases = [("honest", 0), *((attack, count) for count in (1, 2) for attack in poison.ATTACKS)]
    found = {f"digits/{a}/{c}/{name}/{s}": 0.5 + s / 10 for a, c in cases for name in poison.DEFENCES for s in (0, 1)}
    found |= {f"digits/huge/1/none/{seed}": 0.0 for seed in (0, 1)}
    lines = poison.table(found, "digits", [0, 1]).splitlines()
    assert lines[2].startswith("| all honest | 55.0 ± 7.1 |")
    assert next(line for line in lines if "huge, 1 of 10" in line).startswith("| huge, 1 of 10 | broke | 55.0")


def test_the_noise_is_that_of_the_epsilon_in_the_table() -> None:
    found = {f"{key}/0": 0.5 for key in ("fedavg", *map(str, dp.EPSILONS))}
    lines = dp.table(found, [0]).splitlines()
    assert lines[3] == "| clipped, no noise | 0.000 | 50.0 |"
    noises = [float(line.split(" | ")[1]) for line in lines[4:]]
    assert noises == sorted(noises)  # less epsilon, more noise


def test_the_attacker_finds_a_linear_rule() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, rule = torch.randn(200, 5, generator=rng), torch.randn(5, 2, generator=rng)
    learned = leakage.Ridge(rows[:150], rows[:150] @ rule)
    torch.testing.assert_close(learned(rows[150:]), rows[150:] @ rule, rtol=1e-2, atol=1e-2)


@pytest.fixture(scope="module")
def world() -> leakage.World:
    made = leakage.make_world(0)
    examples, classes = made.embeddings.examples, made.embeddings.classes
    # Not trained: what is tested does not depend on it.
    return made._replace(network=DSAIGN(examples.shape[1], classes.shape[1], leakage.INDEX.settings))


def test_clients_of_the_leakage_table_have_one_domain_and_so_many_images(world: leakage.World) -> None:
    clients, domains = leakage.draw_clients(world.data, world.theirs, 7, 5, 0, "theirs")
    assert domains.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert world.data.domain is not None
    for own, domain in zip(clients, domains.tolist(), strict=True):
        assert len(set(own.tolist())) == 5
        assert set(world.data.domain[own].tolist()) == {domain}
        assert set(own.tolist()) <= set(world.theirs.tolist())


def test_noise_hides_a_vector_and_none_leaves_it(world: leakage.World) -> None:
    clients, _ = leakage.draw_clients(world.data, world.theirs, 5, 5, 0, "theirs")
    atlas = leakage.vectors_of(world, "label-histogram", clients, 1.0)
    plain = leakage.with_noise(atlas, "label-histogram", math.inf, 1.0, 0)
    assert torch.equal(plain, leakage.shares_of(world, clients))
    noisy = leakage.with_noise(atlas, "label-histogram", 1.0, 1.0, 0)
    # One of five examples moves the shares by up to 2 / 5; epsilon 1 at delta 1e-5 asks for 3.73 times that.
    assert (noisy - plain).std().item() == pytest.approx(3.73 * 2 / 5, rel=0.3)


@pytest.mark.parametrize("source", leakage.SOURCES)
def test_a_vector_of_one_image_is_that_of_a_client_with_one(source: str, world: leakage.World) -> None:
    some = world.theirs[:6]
    atlas = leakage.vectors_of(world, source, [one[None] for one in some], 5.0)
    torch.testing.assert_close(
        leakage.alone(world, source, some, 5.0), atlas.half(next(iter(atlas.halves))), rtol=1e-4, atol=1e-5
    )

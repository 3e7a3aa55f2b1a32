import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from atlases import by_hand, random_atlas, roster_of
from fedatlas.algorithms import fedavg, feddyn, scaffold
from fedatlas.algorithms.client2vec import client2vec
from fedatlas.algorithms.client2vec_sampling import SimilarityWeights, SimilarToLast
from fedatlas.atlas import Atlas
from fedatlas.client import LocalWork
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, Algorithm, ClientInfo, Cohort, Roster, Upload
from fedatlas.seeds import numpy_generator
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def scores(sampler: SimilarToLast, roster: Roster, last: Sequence[int], count: int) -> np.ndarray:
    memory = sampler.init({}, roster) | {"last_drawn": torch.tensor(last)}
    return sampler.scores(np.arange(len(roster)), count, roster, memory)


def test_large_members_of_the_last_cohort_pull_harder() -> None:
    """A (size 1) and B (size 3) were drawn. S(A) = (1 (1 + 1) + 3 (0 + 1)) / 8 = 5/8,
    S(B) = (1 (0 + 1) + 3 (1 + 1)) / 8 = 7/8, S(C) = (1 (0.6 - 1) + 3 (0.8 - 1)) / 8 = -1/8. At tau = 0.5, p is as
    e^1.25 : e^1.75 : e^-0.25 = 3.490343 : 5.754603 : 0.778801, so 0.348207, 0.574097, 0.077696. Two of three clients a
    round: no window."""
    found = scores(SimilarToLast(atlas=by_hand(), tau=0.5), roster_of((1, 3, 2)), (1, 1, 0), 2)
    assert found.tolist() == pytest.approx([1.25, 1.75, -0.25])
    shares = np.exp(found) / np.exp(found).sum()
    assert shares.tolist() == pytest.approx([0.348207, 0.574097, 0.077696], abs=1e-6)


@pytest.mark.parametrize(("half", "expected"), [("feature", [0.25, 0.75, 0.75]), ("label", [1.0, 1.0, -1.0])])
def test_one_half_alone_has_no_factor_of_a_half(half: str, expected: list[float]) -> None:
    """Features: S(A) = 1/4, S(B) = 3/4, S(C) = (0.6 + 3 * 0.8) / 4 = 0.75; labels: 1, 1, -1."""
    found = scores(SimilarToLast(atlas=by_hand(), tau=1.0, half=half), roster_of((1, 3, 2)), (1, 1, 0), 2)
    assert found.tolist() == pytest.approx(expected)


def test_draws_without_replacement_follow_the_probabilities() -> None:
    """P({i, j}) = p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j); 4000 draws have a standard error below 0.008.

    Noise subtracted in place of added would leave out client 2 in 0.736 of the draws, and not in 0.776."""
    sampler, roster = SimilarToLast(atlas=by_hand(), tau=0.5), roster_of((1, 3, 2))
    memory = sampler.init({}, roster) | {"last_drawn": torch.tensor([1, 1, 0])}
    weights = np.exp([1.25, 1.75, -0.25])
    p = weights / weights.sum()
    found: dict[tuple[int, ...], int] = {}
    rng = numpy_generator(0, "test")
    for _ in range(4000):
        drawn, after = sampler.sample([0, 1, 2], 2, roster, memory, rng)
        found[tuple(drawn)] = found.get(tuple(drawn), 0) + 1
        assert after["last_drawn"].tolist() == [2 if i in drawn else (1, 1, 0)[i] for i in range(3)]
    for pair in combinations(range(3), 2):
        expected = sum(p[i] * p[j] / (1 - p[i]) for i, j in permutations(pair))
        assert found[pair] / 4000 == pytest.approx(expected, abs=0.025)


def test_the_first_round_is_drawn_as_the_base_draws_it() -> None:
    federation = blob_federation(num_clients=12)
    algorithm = client2vec(atlas=random_atlas(federation), tau=0.01, aggregate=False, train=False)
    cohorts = [play(a, Norms(), federation, rounds=2, cohort=3)[1] for a in (algorithm, fedavg())]
    assert cohorts[0][0].cohort == cohorts[1][0].cohort
    assert cohorts[0][1].cohort != cohorts[1][1].cohort


def test_no_client_comes_again_within_the_window() -> None:
    """M = 20 clients, m = 2 a round: W = floor(20 / 4) = 5. A small tau would draw the same ones again at once."""
    federation = blob_federation(num_clients=22, held_out=2)
    atlas = random_atlas(federation)
    algorithm = replace(fedavg(), sampler=SimilarToLast(atlas=atlas, tau=0.05))
    _, records, _ = play(algorithm, Norms(), federation, rounds=24, cohort=2, work=LocalWork(steps=1))
    cohorts = [set(record.cohort) for record in records]
    assert all(len(cohort) == 2 and max(cohort) < 20 for cohort in cohorts)
    assert all(not cohorts[t] & cohorts[t - back] for t in range(24) for back in range(1, 6) if back <= t)
    assert any(cohorts[t] & cohorts[t - 6] for t in range(6, 24))


def test_the_window_is_counted_in_rounds_and_frees_the_oldest_first() -> None:
    """Six clients. One a round: W = 3, so in round 5 those drawn in rounds 2, 3 and 4 are out, that of round 1 is back.
    Three a round: W = 1, so only that of round 4 is out. All six: W = 0."""
    names = tuple(f"client-{i}" for i in range(6))
    atlas = Atlas(names=names, halves={"any": torch.ones(6, 1)}, sizes=torch.ones(6, dtype=torch.int64))
    sampler, roster = SimilarToLast(atlas=atlas), roster_of([1] * 6)
    for count, out in ((1, [1, 2, 3]), (3, [3]), (6, [])):
        found = scores(sampler, roster, (1, 2, 3, 4, 0, 0), count)
        assert np.flatnonzero(np.isneginf(found)).tolist() == out


def test_the_window_shrinks_until_enough_clients_remain() -> None:
    """Cohorts of other sizes came before. Two a round, W = 1, but the last round drew five of six: all are free. One a
    round, W = 3: four were drawn in round 2 and two in round 3, so W shrinks to 1."""
    names = tuple(f"client-{i}" for i in range(6))
    atlas = Atlas(names=names, halves={"any": torch.ones(6, 1)}, sizes=torch.ones(6, dtype=torch.int64))
    sampler, roster = SimilarToLast(atlas=atlas), roster_of([1] * 6)
    assert np.isfinite(scores(sampler, roster, (1, 1, 1, 1, 1, 0), 2)).all()
    assert np.isfinite(scores(sampler, roster, (2, 2, 2, 2, 3, 3), 1)).tolist() == [True] * 4 + [False] * 2


def test_a_cold_temperature_draws_the_nearest_clients() -> None:
    """exp(1 / 1e-5) is beyond any number, and exp(-1e5) is 0: the draws need neither."""
    federation = blob_federation(num_clients=12)
    atlas = random_atlas(federation)
    sampler = SimilarToLast(atlas=atlas, tau=1e-5)
    roster = [ClientInfo(id=i, name=c.name, num_examples=len(c.train)) for i, c in enumerate(federation)]
    memory = sampler.init({}, roster) | {"last_drawn": torch.tensor([1] + [0] * 11)}
    drawn, _ = sampler.sample(list(range(12)), 3, roster, memory, numpy_generator(0))
    nearest = [name for name, _ in atlas.neighbours("client-0", 3)]
    assert {f"client-{i}" for i in drawn} == set(nearest)


def test_weights_grow_with_the_likeness_to_recent_cohorts() -> None:
    """Sizes 1 and 3, both answer: S = 5/8 and 7/8 as above, q = 1/4 and 3/4. Round 1: the weights are as 1 to
    3 e^(1/4) = 3.852076, so 0.206097 and 0.793903. Round 2: A = 1.5 S with gamma 0.5, 1 to 3 e^(3/8) = 4.364974."""
    federation = line_federation(([2], [0]), ([2] * 3, [1] * 3))
    algorithm = client2vec(atlas=by_hand((1, 3)), sample=False, train=False)
    _, records, _ = play(algorithm, Line(), federation, rounds=2)
    assert records[0].weights == pytest.approx({0: 0.206097, 1: 0.793903}, abs=1e-6)
    assert records[1].weights == pytest.approx({0: 0.186394, 1: 0.813606}, abs=1e-6)


@pytest.mark.parametrize("half", [None, "feature"])
def test_the_recursion_is_the_explicit_double_sum(half: str | None) -> None:
    federation = blob_federation(num_clients=9, held_out=1)
    atlas = random_atlas(federation)
    gamma, lambda1 = 0.7, 0.3
    algorithm = client2vec(
        atlas=atlas, sample=False, train=False, gamma=gamma, lambda1=lambda1, half=half
    ).with_optimizer(SGD(lr=1e-3))
    _, records, _ = play(algorithm, Norms(), federation, rounds=5, cohort=3, work=LocalWork(steps=1))
    sizes = atlas.sizes.double()
    halves = [atlas.halves[own].double() for own in (("feature", "label") if half is None else (half,))]

    def likeness(i: int, cohort: Sequence[int]) -> float:
        total = sum(
            float(sizes[j] * F.cosine_similarity(table[i], table[j], dim=0)) for j in cohort for table in halves
        )
        return total / (len(halves) * float(sizes[list(cohort)].sum()))

    for t, record in enumerate(records):
        raw = {
            i: float(sizes[i])
            * math.exp(sum(gamma ** (t - s) * likeness(i, records[s].cohort) for s in range(t + 1)) / lambda1)
            for i in record.cohort
        }
        assert record.weights == pytest.approx({i: w / sum(raw.values()) for i, w in raw.items()}, rel=1e-9)


@pytest.mark.parametrize("base", [fedavg(), feddyn()])
def test_without_a_past_and_at_infinite_temperature_the_weights_are_the_bases(base: Algorithm) -> None:
    federation = blob_federation()
    plain, records, _ = play(base, Norms(), federation, rounds=3, cohort=4)
    algorithm = client2vec(base, random_atlas(federation), sample=False, train=False, gamma=0.0, lambda1=math.inf)
    state, weighed, _ = play(algorithm, Norms(), federation, rounds=3, cohort=4)
    assert [r.weights for r in weighed] == [r.weights for r in records]
    assert same_bits(state.shared, plain.shared)


def test_weights_chain_on_the_bases() -> None:
    """SCAFFOLD counts all the same; Eq. 3 has q = 1/4 and 3/4, so the weights are as 1 : 3 e^(1/4)."""
    federation = line_federation(([2], [0]), ([2] * 3, [1] * 3))
    _, records, _ = play(client2vec(scaffold(), by_hand((1, 3)), sample=False, train=False), Line(), federation)
    assert records[0].weights == pytest.approx({0: 0.206097, 1: 0.793903}, abs=1e-6)


def test_likeness_is_to_those_who_answered_as_often_as_they_were_drawn() -> None:
    """A (size 1) was drawn twice, B (size 3) once, C did not answer: S(A) = (2 (1 + 1) + 3 (0 + 1)) / 10 = 0.7, S(B) =
    (2 (0 + 1) + 3 (1 + 1)) / 10 = 0.8. The weights are as e^0.7 to e^0.8."""
    roster = roster_of((1, 3, 2))
    link = SimilarityWeights(atlas=by_hand())
    uploads = [Upload(client=i, num_examples=n, num_steps=1, change={}, buffers={}) for i, n in ((0, 1), (1, 3))]
    cohort = Cohort(round=1, rounds=1, roster=roster, uploads=uploads, draws={0: 2, 1: 1, 2: 1}, shared={}, lr=0.1)
    weights, _ = link.weigh(torch.ones(2, dtype=torch.float64), cohort, link.init({}, roster))
    assert float(weights[0] / weights[1]) == pytest.approx(math.exp(-0.1))


def test_the_window_shrinks_no_further_than_it_must() -> None:
    """Eight clients, two a round, W = 2: in round 4 those of rounds 2 and 3 are out, and one is left. The two that
    waited longest, of rounds 1 and 2, are freed, and nobody of round 3."""
    names = tuple(f"client-{i}" for i in range(8))
    atlas = Atlas(names=names, halves={"any": torch.ones(8, 1)}, sizes=torch.ones(8, dtype=torch.int64))
    found = scores(SimilarToLast(atlas=atlas), roster_of([1] * 8), (3, 3, 3, 3, 3, 2, 1, 3), 2)
    assert np.flatnonzero(np.isfinite(found)).tolist() == [5, 6]


def test_a_cold_temperature_of_the_weights_takes_the_most_alike_without_overflow() -> None:
    """exp(S / 1e-4) is beyond any number; S = 5/8 and 7/8, so all weight is the second's."""
    federation = line_federation(([2], [0]), ([2] * 3, [1] * 3))
    algorithm = client2vec(atlas=by_hand((1, 3)), sample=False, train=False, lambda1=1e-4)
    _, records, _ = play(algorithm, Line(), federation)
    assert records[0].weights == {0: 0.0, 1: 1.0}


@pytest.mark.parametrize("size", [2, 4])
def test_an_atlas_of_other_sizes_is_refused_whichever_way_they_differ(size: int) -> None:
    with raises(UsageError, "data-differ", client="client-1", got=3, wanted=size):
        SimilarToLast(atlas=by_hand((1, size, 2))).init({}, roster_of((1, 3, 2)))

from dataclasses import replace

import pytest
import torch

from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.fedavgm import fedavgm
from fedatlas.algorithms.feddisco import Discrepancy, feddisco, from_uniform
from fedatlas.algorithms.feddyn import feddyn
from fedatlas.algorithms.qffl import qffl
from fedatlas.algorithms.scaffold import scaffold
from fedatlas.algorithms.term import term
from fedatlas.errors import UsageError
from fedatlas.parts import Algorithm, Equal, words
from raising import raises
from tiny import Line, Norms, blob_federation, line_federation, play, same_bits


def test_the_balanced_client_counts_more() -> None:
    """Two classes. Client 0 has 2 and 2: KL = 0; client 1 has 4 and 0: KL = log 2. Their shares of the sum: 0 and 1.
    With p = (1/2, 1/2), a = 0.5, b = 0.1: 0.6 and 0.1, normalised 6/7 and 1/7."""
    federation = line_federation(([2] * 4, [0, 0, 1, 1]), ([2] * 4, [0] * 4))
    _, records, _ = play(feddisco(), Line(), federation)
    assert records[0].weights == pytest.approx({0: 6 / 7, 1: 1 / 7})


def test_sizes_and_discrepancy_add_up() -> None:
    """Client 0 has 1 and 1, client 1 has 3 and 1, client 2 has 2 and 0. KL: 0; 0.75 log 1.5 + 0.25 log 0.5 = 0.130812;
    log 2 = 0.693147; sum 0.823959, shares 0, 0.158760, 0.841240. p = 1/4, 1/2, 1/4; a = 0.5, b = 0.1: 0.35, 0.520620,
    and 0.25 - 0.420620 + 0.1 < 0, so 0. Normalised by 0.870620: 0.402012, 0.597988, 0."""
    federation = line_federation(([2] * 2, [0, 1]), ([2] * 4, [0, 0, 0, 1]), ([2] * 2, [0, 0]))
    _, records, _ = play(feddisco(), Line(), federation)
    assert records[0].weights == pytest.approx({0: 0.402012, 1: 0.597988, 2: 0.0}, abs=1e-6)


def test_the_discrepancy_is_shared_among_those_that_take_part() -> None:
    """Of a cohort of one, the client has all the discrepancy and all the weight, however skewed."""
    federation = line_federation(([2] * 4, [0, 0, 1, 1]), ([2] * 4, [0] * 4))
    _, records, _ = play(feddisco(), Line(), federation, rounds=4, cohort=1)
    assert {tuple(record.weights.values()) for record in records} == {(1.0,)}
    assert len({record.cohort for record in records}) == 2


def test_weights_fall_back_to_the_base_when_nobody_is_left() -> None:
    """Both clients have KL log 2, shares 1/2; p = 1/4 and 3/4; a = 2, b = 0: -0.75 and -0.25, so p stays."""
    federation = line_federation(([2], [0]), ([2] * 3, [1] * 3))
    _, records, _ = play(feddisco(a=2.0, b=0.0), Line(), federation)
    assert records[0].weights == {0: 0.25, 1: 0.75}


def test_balanced_clients_have_no_discrepancy_to_share() -> None:
    """KL = 0 for all: p' = p + b; with p = 1/3, 2/3 and b = 0.1, normalised 0.433333 / 1.2 and 0.766667 / 1.2."""
    federation = line_federation(([2] * 2, [0, 1]), ([2] * 4, [0, 1, 0, 1]))
    _, records, _ = play(feddisco(), Line(), federation)
    assert records[0].weights == pytest.approx({0: 0.361111, 1: 0.638889}, abs=1e-6)


def test_a_balanced_row_diverges_by_exactly_zero() -> None:
    for classes in range(2, 101):
        for count in (1.0, 3.0, 7.0):
            assert from_uniform(torch.full((1, classes), count, dtype=torch.float64)).item() == 0
    one_class = torch.eye(10, dtype=torch.float64) * 7
    torch.testing.assert_close(from_uniform(one_class), torch.full((10,), 10.0, dtype=torch.float64).log())


def test_over_a_base_with_equal_weights_it_begins_from_the_numbers_of_examples() -> None:
    """As in the first test, but sizes 4 and 8: p = (1/3, 2/3) though the base counts all the same. The weights are as
    1/3 + 0.1 = 13/30 and 2/3 - 0.5 + 0.1 = 8/30: 13/21 and 8/21."""
    federation = line_federation(([2] * 4, [0, 0, 1, 1]), ([2] * 8, [0] * 8))
    _, records, _ = play(feddisco(replace(fedavg(), weighting=(Equal(),))), Line(), federation)
    assert records[0].weights == pytest.approx({0: 13 / 21, 1: 8 / 21})


def test_without_a_and_b_it_is_the_base_bit_for_bit() -> None:
    federation = blob_federation()
    for base in (fedavg(), feddyn()):
        plain, _, _ = play(base, Norms(), federation, rounds=3, cohort=4)
        without, _, _ = play(feddisco(base, a=0.0, b=0.0), Norms(), federation, rounds=3, cohort=4)
        assert same_bits(plain.shared, without.shared)
        assert same_bits(plain.buffers, without.buffers)


@pytest.mark.parametrize("base", [fedavgm(), feddyn(), scaffold(), term()])
def test_any_base_that_weighs_its_clients_runs(base: Algorithm) -> None:
    algorithm = feddisco(base)
    assert algorithm.name == f"feddisco+{base.name}"
    federation = blob_federation(num_clients=7, held_out=2)
    with_disco, records, _ = play(algorithm, Norms(), federation, rounds=2, cohort=3)
    plain, _, _ = play(base, Norms(), federation, rounds=2, cohort=3)
    assert all(sum(record.weights.values()) == pytest.approx(1) for record in records)
    assert not same_bits(plain.shared, with_disco.shared)


def test_plain_feddisco_has_a_plain_name() -> None:
    assert feddisco().name == feddisco(fedavg()).name == "feddisco"
    assert feddisco() == feddisco(fedavg())


def test_a_base_that_ignores_weights_is_refused() -> None:
    with raises(UsageError, "base-unfit", base="qffl", part="FairStep"):
        feddisco(qffl())


def test_feddisco_over_itself_is_refused() -> None:
    with raises(UsageError, "base-unfit", base="feddisco+feddyn", part="Discrepancy"):
        feddisco(feddisco(feddyn()))


def test_settings_that_are_no_use_are_refused() -> None:
    with raises(UsageError, "out-of-range", setting="Discrepancy(a)", got=-1):
        feddisco(a=-1)
    with raises(UsageError, "out-of-range", setting="Discrepancy(b)"):
        Discrepancy(b=float("nan"))


def test_label_counts_are_disclosed() -> None:
    assert words(feddisco().disclosures()) == ["the number of training examples of each class, once"]
    _, _, simulator = play(feddisco(), Line(), line_federation(([2] * 3, [0, 1, 1])))
    assert simulator.roster[0].introduction["discrepancy"]["label_counts"].tolist() == [1, 2]


def test_either_of_a_and_b_may_be_zero() -> None:
    """Client 0 has 2 and 2, client 1 has 4 and 0: shares of the discrepancy 0 and 1, p = 1/2 each. a = 0.25, b = 0:
    0.5 and 0.25, so 2/3 and 1/3. Sizes 1 and 3, a = 0, b = 1: 1.25 and 1.75 of 3."""
    federation = line_federation(([2] * 4, [0, 0, 1, 1]), ([2] * 4, [0] * 4))
    _, records, _ = play(feddisco(a=0.25, b=0.0), Line(), federation)
    assert records[0].weights == pytest.approx({0: 2 / 3, 1: 1 / 3})
    _, records, _ = play(feddisco(a=0.0, b=1.0), Line(), line_federation(([2], [0]), ([2] * 3, [1] * 3)))
    assert records[0].weights == pytest.approx({0: 1.25 / 3, 1: 1.75 / 3})

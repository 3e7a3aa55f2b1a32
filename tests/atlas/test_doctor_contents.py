from dataclasses import replace

import numpy as np
import pytest
import torch

from fedatlas.atlas.doctor.columns import CODES, Everywhere, describe_columns, find_faults, is_constant, other_scale
from fedatlas.atlas.doctor.contents import copy_suspects, picture_suspects
from fedatlas.atlas.doctor.duplicates import Copies, content_keys, describe_copies, find_copies
from fedatlas.atlas.doctor.figures import ClientFigures, describe_clients, own_examples, own_keys
from fedatlas.atlas.doctor.pictures import PictureFigures, broken, describe_pictures
from fedatlas.atlas.doctor.sizes import lacking_classes, small_clients
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.data import Client, Federation, Iid, NaturalId, federate, from_arrays, load_dataset
from fedatlas.errors import DataError
from fedatlas.seeds import numpy_generator
from raising import raises


def _clients(count: int = 4, rows: int = 100) -> list[np.ndarray]:
    """Return clients' rows of a measurement (100 to 300), a grade (0 to 3) and a share (0 to 1)."""
    rng = numpy_generator(0, "columns")
    return [
        np.stack([rng.normal(200, 30, rows), rng.integers(0, 4, rows), rng.random(rows)], axis=1) for _ in range(count)
    ]


def _faults(clients: list[np.ndarray]) -> list[tuple[int, int, str]]:
    found, _ = find_faults([describe_columns(own) for own in clients])
    return [(fault.client, fault.column, fault.kind) for fault in found]


def test_a_client_s_figures_by_hand() -> None:
    """20 to 40 in steps of 1, three zeros and a gap: quantiles are without the zeros, which are 3 of 24 cells.

    The IQR is 10, so cells below 5 or above 55 are far. Nothing but the zeros is within 10 of 0, and all are below 99.
    """
    column = np.array([*range(20, 41), 0, 0, 0, np.nan], float)
    (figures,) = describe_columns(column[:, None])
    assert (figures.count, figures.missing, figures.commonest) == (24, 1, 3)
    assert figures.quantiles == (22.0, 25.0, 30.0, 35.0, 38.0)
    assert figures.tails == (3, 0)
    told = dict(zip(CODES, figures.codes, strict=True))
    assert told[0.0] == (3, 0, 0)
    assert told[99.0] == (0, 24, 0)
    assert told[9.0] == (0, 3, 0)


def test_no_value_of_a_person_is_told_of_a_small_client() -> None:
    (figures,) = describe_columns(np.array([[12.0], [15.0], [999.0], [999.0], [999.0]]))
    assert figures.quantiles is None
    assert dict(zip(CODES, figures.codes, strict=True))[999.0] == (3, 2, 0)


def test_a_value_that_two_persons_have_is_not_told() -> None:
    """Two nines are among those above 0 and above 9, as they are above the median; they are told as no nines."""
    (figures,) = describe_columns(np.array([[2.0], [3.0], [9.0], [9.0]]))
    assert dict(zip(CODES, figures.codes, strict=True))[9.0] == (0, 2, 2)


def test_clean_columns_have_no_fault() -> None:
    assert _faults(_clients()) == []


@pytest.mark.parametrize("code", [0.0, -1.0, -9.0, 999.0])
def test_a_value_that_stands_for_missing_is_named(code: float) -> None:
    clients = _clients()
    clients[2][::10, 0] = code
    assert _faults(clients) == [(2, 0, "missing-coded")]
    clients[1][:, 0] = code
    assert _faults(clients) == [(1, 0, "missing-coded"), (2, 0, "missing-coded")]


def test_a_value_that_all_clients_have_alone_is_a_remark_and_no_suspect() -> None:
    """Two clients of four had it far from the rest, as all have: whether it is a measurement, all may know."""
    clients = _clients()
    for own in clients:
        own[:15, 0] = 0.0
    assert find_faults([describe_columns(own) for own in clients]) == ([], [Everywhere(0, 0.0, (15,) * 4)])
    clients[0][:, 0][clients[0][:, 0] == 0] = 200.0
    assert _faults(clients) == [], "who lacks it is no suspect"
    for own in clients[1:3]:
        own[:15, 0] = own[15:30, 0]
    assert _faults(clients) == [(3, 0, "missing-coded")]


def test_the_end_of_a_tail_does_not_stand_for_missing() -> None:
    """Counts of which 9 is one: seven and eight occur too, beyond two IQR above the quartile."""
    rng = numpy_generator(0, "tail")
    clients = [rng.geometric(0.4, (400, 1)).astype(float) for _ in range(4)]
    clients[1][:6] = 9.0
    assert _faults(clients) == []
    clients[1][:40] = 99.0
    assert _faults(clients) == [(1, 0, "missing-coded")]


def test_a_value_within_reach_is_named_only_where_no_other_client_comes_near() -> None:
    """Of ages from 18 to 80 zero is less than two IQR away. Of whole numbers from 1 it is the next one."""
    rng = numpy_generator(0, "ages")
    clients = [rng.integers(18, 80, (200, 1)).astype(float) for _ in range(4)]
    clients[2][:20] = 0.0
    assert _faults(clients) == [(2, 0, "missing-coded")]
    clients = [rng.integers(1, 40, (200, 1)).astype(float) for _ in range(4)]
    clients[2][:20] = 0.0
    assert _faults(clients) == []


def test_zeros_of_grades_and_shares_are_values() -> None:
    clients = _clients()
    for own in clients:
        own[:20, 1:] = 0.0
    assert _faults(clients) == []


def test_another_unit_is_named_with_its_factor() -> None:
    clients = _clients()
    clients[3][:, 0] *= 0.0555
    figures = [describe_columns(own) for own in clients]
    assert _faults(clients) == [(3, 0, "other-scale")]
    factor = other_scale(figures[3][0], [row[0] for row in figures[:3]])
    assert factor == pytest.approx(0.0555, rel=0.1)


@pytest.mark.parametrize(("factor", "named"), [(0.5, False), (2.0, False), (2.54, True), (1 / 2.54, True), (6.0, True)])
def test_a_factor_that_is_no_unit_s_is_no_fault(factor: float, named: bool) -> None:
    clients = _clients(rows=400)
    clients[3][:, 0] *= factor
    assert _faults(clients) == ([(3, 0, "other-scale")] if named else [])


def test_a_unit_s_factor_is_no_fault_where_others_differ_as_much() -> None:
    clients = _clients(6, rows=400)
    for own, factor in zip(clients, (1.0, 1.5, 0.6, 2.0, 0.5, 2.54), strict=True):
        own[:, 0] *= factor
    assert _faults(clients) == []


def test_a_wider_or_a_shifted_column_is_not_on_another_scale() -> None:
    clients = _clients()
    clients[0][:, 0] = 200 + 3 * (clients[0][:, 0] - 200)
    clients[1][:, 0] += 300
    assert _faults(clients) == []


def test_one_value_where_others_vary_is_named_unless_chance_gives_it() -> None:
    """Others' commonest grade has at most a share of 0.36 here: of 100 all alike by chance is out of the question.

    Of 4 it is 0.36^4 = 0.017, which is more than 0.05 / 12.
    """
    clients = _clients()
    clients[1][:, 1] = 2.0
    assert _faults(clients) == [(1, 1, "constant")]
    clients[1] = clients[1][:4]
    assert (1, 1, "constant") not in _faults(clients)
    grades = [describe_columns(own)[1] for own in clients]
    assert is_constant(grades[1], [grades[0]], tests=1)


def test_content_keys_are_equal_for_equal_rows_only() -> None:
    rows = np.array([[1, 2], [3, 4], [1, 2], [2, 1]], np.uint8)
    keys = content_keys(rows)
    assert keys[0] == keys[2]
    assert len({*keys.tolist()}) == 3


def test_copies_between_clients_and_in_the_test_are_counted() -> None:
    train = [np.arange(0, 50), np.arange(47, 97), np.arange(100, 150)]
    test = [np.array([200]), np.array([48, 49, 50, 201]), np.array([202])]
    figures = [describe_copies(own, tested) for own, tested in zip(train, test, strict=True)]
    assert figures[1] == (50, 4, 0, 3)
    assert find_copies(figures, train) == [Copies(0, 1, 3), Copies(1, 1, 3)]
    assert find_copies(figures) == [Copies(1, 1, 3)], "without keys, each client's own alone"
    assert find_copies(figures[:2], [np.arange(50), np.arange(48, 98)])[0] == Copies(1, 1, 3), "two are too few"


def test_rows_that_repeat_within_clients_are_not_copies() -> None:
    """Of 20 different rows every client has most, by chance."""
    rng = numpy_generator(0, "rows")
    train = [rng.integers(0, 20, 60) for _ in range(4)]
    assert find_copies([describe_copies(own, np.array([], np.int64)) for own in train], train) == []


def test_clients_whose_rows_repeat_have_copies_by_chance_and_others_do_not() -> None:
    """Of rows drawn from 40, 2.5 % of all pairs are equal, so two clients of 50 share 62 pairs at most by chance.

    Clients whose rows are all different make no row likelier to occur twice at those.
    """
    rng = numpy_generator(0, "rows")
    repeating = [rng.integers(0, 40, 50) for _ in range(2)]
    various = [np.arange(1000 * i, 1000 * i + 600) for i in (1, 2, 3)]
    various[1][:30] = various[0][:30]
    train = [*repeating, *various]
    figures = [describe_copies(own, np.array([], np.int64)) for own in train]
    assert find_copies(figures, train) == [Copies(2, 3, 30)]


def _given_in_two_parts(drawn: bool) -> Federation:
    """Return two clients of rows of 60 different ones, with a test part of their own or without one."""
    rng = numpy_generator(0, "few rows")
    rows = rng.integers(0, 60, (400, 1)).repeat(3, axis=1).astype(np.float32)
    rows[:200] = rng.normal(size=(200, 3))
    rows[150:200] = rows[:50]
    is_test = np.zeros(400, bool)
    is_test[150:200] = is_test[350:] = True
    data = from_arrays(rows, np.arange(400) % 2, owner=["a"] * 200 + ["b"] * 200, is_test=None if drawn else is_test)
    if drawn:
        return federate(data, NaturalId(), seed=0)
    clients = (Client(name="a", train=torch.arange(150), test=torch.arange(150, 200)),)
    clients += (Client(name="b", train=torch.arange(200, 350), test=torch.arange(350, 400)),)
    return replace(federate(data, NaturalId(), test="all"), clients=clients)


def test_a_test_part_that_was_drawn_is_not_compared_with_the_training() -> None:
    """The split of repeated rows has equal ones in both parts, and fedatlas drew it itself."""
    assert [own.copies.test for own in describe_clients(_given_in_two_parts(drawn=True))] == [0, 0]
    assert [own for own in _suspects(_given_in_two_parts(drawn=True)) if own.kind == "test-in-training"] == []


def test_a_test_part_that_was_given_is_compared_with_the_training() -> None:
    """Client a has its 50 test rows in training too; the rows of b are of 60, so its are there by chance."""
    found = _suspects(_given_in_two_parts(drawn=False))
    assert [(own.client, own.reason[:2]) for own in found if own.kind == "test-in-training"] == [("a", "50")]


def _pictures(count: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(numpy_generator(seed, "pictures").integers(0, 256, (count, 1, 8, 8)).astype(np.uint8))


def test_blank_and_truncated_images_are_counted() -> None:
    images = _pictures(10)
    images[0] = 7
    images[1, :, 5:] = 128  # three rows of eight
    images[2, :, 7:] = 128  # one row is less than a quarter
    images[3] = 0
    images[3, :, 1:4, 2:5] = 200  # a thing on a plain ground
    assert describe_pictures(images) == PictureFigures(images=10, blank=1, truncated=1)


def test_a_client_with_more_truncated_images_than_the_others_is_named() -> None:
    usual = PictureFigures(images=100, blank=0, truncated=2)
    assert broken([usual, usual, usual._replace(truncated=20)]) == {2: ("truncated", 20)}
    assert broken([usual._replace(truncated=90)] * 3) == {}, "a plain ground"
    assert broken([usual, usual._replace(blank=3)]) == {1: ("blank", 3)}
    assert broken([usual, usual._replace(blank=2)]) == {}


def _suspects(federation: Federation) -> list[Suspect]:
    names, figures = [client.name for client in federation], describe_clients(federation)
    copies = find_copies([own.copies for own in figures], own_keys(federation))
    return [*picture_suspects(names, [own.images for own in figures]), *copy_suspects(names, copies)]


def test_broken_images_and_copies_of_a_federation_are_named() -> None:
    images = _pictures(120)
    labels = np.arange(120) % 2
    whole = federate(from_arrays(images.permute(0, 2, 3, 1).numpy(), labels), Iid(num_clients=3), seed=0)
    assert _suspects(whole) == []
    inputs = whole.data.inputs.clone()
    inputs[whole.clients[1].train[:4]] = 0
    inputs[whole.clients[2].train[:5]] = inputs[whole.clients[0].train[:5]]
    inputs[whole.clients[2].test[0]] = inputs[whole.clients[0].test[5]]
    inputs[whole.clients[0].test[:3]] = inputs[whole.clients[0].train[10:13]]
    # Whose split was drawn here is not looked at for copies in its test.
    assert {own.kind for own in _suspects(replace(whole, data=replace(whole.data, inputs=inputs)))} == {
        "images-broken",
        "same-examples",
    }
    spoilt = replace(whole, data=replace(whole.data, inputs=inputs), origin=None)
    blank, *copied = _suspects(spoilt)
    assert (blank.client, blank.kind) == (whole.clients[1].name, "images-broken")
    assert blank.reason.startswith("4 of 40 images")
    copies = {(own.client, own.kind): own.reason for own in copied}
    first = whole.clients[0].name
    last = whole.clients[2].name
    assert copies == {
        (first, "same-examples"): f"6 of its examples are at {last} too",
        (last, "same-examples"): f"6 of its examples are at {first} too",
        (first, "test-in-training"): "3 of its test examples are in its training examples too",
    }


def test_a_shared_test_is_not_a_client_s_own() -> None:
    whole = federate(from_arrays(_pictures(40).permute(0, 2, 3, 1).numpy(), np.arange(40) % 2), Iid(num_clients=2))
    assert [len(own) for own in own_examples(whole)] == [20, 20]
    shared = replace(whole, clients=tuple(replace(client, test=whole.clients[0].test) for client in whole))
    assert [len(own) for own in own_examples(shared)] == [len(client.train) for client in shared]


def test_small_clients_and_missing_classes_by_hand() -> None:
    """The typical client has 100 examples, a fifth is 20; class 2 would give the last one 30 of its 100."""
    assert small_clients([100, 100, 19, 20, 500, 2]) == [2, 5]
    assert small_clients([300, 300, 45]) == [], "45 are not few"
    counts = torch.tensor([[40, 30, 30], [40, 30, 30], [40, 30, 30], [40, 30, 30], [50, 50, 0]])
    assert lacking_classes(counts) == {4: [2]}
    assert lacking_classes(counts // 10) == {}, "of 10 examples it may lack a class by chance"
    assert lacking_classes(torch.eye(3, dtype=torch.int64) * 100) == {}, "no class is one that most have"


def test_figures_come_back_from_their_tensors() -> None:
    for own in describe_clients(federate(load_dataset("heart"), NaturalId(min_samples=1))):
        assert ClientFigures.from_tensors(own.tensors()) == own
        assert len(own.columns) == 10


@pytest.mark.parametrize("name", ["label_counts", "cells", "copies", "quantiles"])
def test_figures_that_no_client_has_are_refused(name: str) -> None:
    (own, *_) = describe_clients(federate(load_dataset("heart"), NaturalId(min_samples=1)))
    tensors = own.tensors()
    tensors[name] = -tensors[name]
    with raises(DataError, "wrong-value", what="figures"):
        ClientFigures.from_tensors(tensors)

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from fedatlas import federate, from_arrays, train
from fedatlas.algorithms.cfl import BySplitting, Linkage, bipartition, cfl
from fedatlas.data import NaturalId
from fedatlas.errors import UsageError
from fedatlas.parts import SGD, ClientInfo, Cohort, Upload
from raising import raises
from tiny import Norms, blob_federation, play, same_bits

APART = ([1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [-1.0, 0.05])


def cohort(changes: Sequence[Sequence[float]], *, round: int = 30, members: int | None = None) -> Cohort:
    roster = [ClientInfo(id=i, name=f"client-{i}", num_examples=10) for i in range(members or len(changes))]
    uploads = [
        Upload(client=i, num_examples=10, num_steps=1, change={"w": torch.tensor(change)}, buffers={})
        for i, change in enumerate(changes)
    ]
    return Cohort(
        round=round,
        rounds=50,
        roster=roster,
        uploads=uploads,
        draws={u.client: 1 for u in uploads},
        shared={},
        lr=0.1,
    )


def test_a_group_at_rest_whose_clients_pull_apart_is_split() -> None:
    """Changes (1, 0.1), (1, -0.1), (-1, 0), (-1, 0.05): the mean (0, 0.0125) is shorter than 0.4, and the longest, of
    1.005, is longer than 1. The first two have cosine 0.9802, the last two 0.9988; across, the largest is -0.9938. So
    they are two pairs."""
    sharing = BySplitting(eps1=0.4, eps2=1.0)
    found = sharing.observe({}, torch.zeros(4, dtype=torch.int64), {0: cohort(APART)})
    assert found.group_of.tolist() == [0, 0, 1, 1]
    assert found.parents == [0, 0]
    shown = sharing.remarks(found.memory)
    assert shown["mean_change"] == pytest.approx([0.0125], abs=1e-7)
    assert shown["longest_change"] == pytest.approx([1.01**0.5])


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        (APART, {"eps1": 0.01}),  # the mean, 0.0125 long, is not at rest
        (APART, {"eps2": 1.1}),  # no client moves by more than 1.1
        (APART, {"after": 30}),  # too early
        (APART, {"gamma_max": 0.999}),  # sqrt((1 + 0.9938) / 2) = 0.99844
        (APART[:2], {}),  # two clients are too few
    ],
)
def test_a_group_stays_whole_otherwise(changes: Sequence[Sequence[float]], settings: dict[str, float]) -> None:
    sharing = BySplitting(**{"eps1": 0.4, "eps2": 1.0, **settings})  # type: ignore[arg-type]
    before = torch.zeros(len(changes), dtype=torch.int64)
    found = sharing.observe({}, before, {0: cohort(changes)})
    assert torch.equal(found.group_of, before)
    assert found.parents == [0]


def test_a_missing_client_puts_a_split_off() -> None:
    sharing = BySplitting(eps1=0.4, eps2=1.0)
    found = sharing.observe({}, torch.zeros(5, dtype=torch.int64), {0: cohort(APART, members=5)})
    assert found.parents == [0]


@pytest.mark.parametrize(("linkage", "expected"), [("single", [1, 1, 1, 0]), ("complete", [1, 1, 0, 0])])
def test_the_best_bipartition_is_that_of_single_linkage(linkage: Linkage, expected: list[int]) -> None:
    """Cosines in a chain, 0.9, 0.8, 0.7: single linkage cuts at the weakest link, 0.7, which is the least possible."""
    chain = np.array([[1, 0.9, 0.1, 0.0], [0.9, 1, 0.8, 0.1], [0.1, 0.8, 1, 0.7], [0.0, 0.1, 0.7, 1]])
    assert bipartition(chain, linkage).astype(int).tolist() == expected


def test_both_parts_go_on_from_the_group_s_model() -> None:
    federation = blob_federation(num_clients=4)
    algorithm = cfl(eps1=100.0, eps2=0.0, after=1)
    state, records, _ = play(algorithm, Norms(), federation, rounds=2)
    first, _, _ = play(algorithm, Norms(), federation, rounds=1)
    assert len(first.groups) == 1
    assert len(state.groups) == 2
    assert records[-1].sharing["count"] == 2
    assert len(records[-1].sharing["mean_change"]) == 1  # of the group before it was split
    assert same_bits(state.groups[0].shared, state.groups[1].shared)


def test_a_group_that_did_not_train_has_no_length() -> None:
    sharing = BySplitting(eps1=0.4, eps2=1.0)
    found = sharing.observe({}, torch.tensor([0, 0, 0, 0, 1]), {0: cohort(APART)})
    assert sharing.remarks(found.memory)["mean_change"][1] is None
    assert sharing.remarks({}) == {"mean_change": [], "longest_change": []}


def test_clients_that_label_otherwise_are_found() -> None:
    """Eight clients have the same points, and half of them the opposite labels. Their changes cancel, so the one model
    is at rest at once, and each half leaves as a whole. No other split follows: ``gamma_max`` asks for
    opposite changes."""
    rng = np.random.default_rng(0)
    classes = np.tile(np.repeat([0, 1], 10), 8)
    points = rng.normal(size=(160, 2)).astype(np.float32) + np.array([[-1.0, 0.0], [1.0, 0.0]], np.float32)[classes]
    owner = np.repeat([f"client-{i}" for i in range(8)], 20)
    labels = np.where(np.repeat(np.arange(8) % 2, 20) == 1, 1 - classes, classes)
    federation = federate(from_arrays(points, labels, name="points", owner=owner), NaturalId(), seed=0)
    algorithm = cfl(eps1=0.2, eps2=0.2, after=2, gamma_max=0.9).with_optimizer(SGD(lr=0.5))
    run = train(federation, algorithm, model="linear", rounds=8, batch_size=5, progress=False)
    found = run.checkpoint().state.group_of
    assert found is not None
    assert found.tolist() == [0, 1] * 4
    assert [entry["groups"]["count"] for entry in run.rounds] == [1, 1, *[2] * 6]
    assert run.rounds[2]["groups"]["mean_change"][0] < 0.2 < run.rounds[2]["groups"]["longest_change"][0]


def test_settings_are_checked() -> None:
    with raises(UsageError, "wrong-type", got="ward"):
        BySplitting(linkage="ward")  # type: ignore[arg-type]
    with raises(UsageError, "out-of-range", setting="BySplitting(eps1)"):
        BySplitting(eps1=-1)

from dataclasses import replace

import pytest
import torch

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.sources import class_prototypes
from fedatlas.atlas.summary import (
    Summary,
    client_cells,
    client_sums,
    fit_whitening,
    halves_distance,
    summarise,
    summary_disclosures,
    trace_of_square,
)
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import generator
from raising import raises
from summaries import federation, gaussian

ROWS = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
LABELS = torch.tensor([0, 0, 1, 1])
SIX = torch.cat([ROWS, torch.tensor([[1.0, 0.0], [0.0, 3.0]])])
"""With the middle of each class, so that both directions are known."""
SIX_LABELS = torch.tensor([0, 0, 1, 1, 0, 1])


def test_the_whitening_is_the_pooled_covariance_with_a_ridge() -> None:
    """Scatter diag(2, 8) by 6 examples less 2 cells: W = diag(0.5, 2), ridge 0.1 x 1.25.

    So the directions are y by sqrt 2.125 and x by sqrt 0.625, and the variances 2 / 2.125 and 0.5 / 0.625 are left. The
    class means are (1, 0) and (0, 3), the centre (0.5, 1.5), and their one difference is a direction of length 1.
    """
    found = fit_whitening(client_sums(SIX, SIX_LABELS, 2))
    assert found is not None
    torch.testing.assert_close(found.basis, torch.tensor([[0.0, 0.625**-0.5], [2.125**-0.5, 0.0]]).double())
    torch.testing.assert_close(found.spread, torch.tensor([2 / 2.125, 0.8]).double())
    torch.testing.assert_close(found.centre, torch.tensor([0.5, 1.5]).double())
    difference = torch.tensor([3 / 2.125**0.5, -1 / 0.625**0.5]).double()
    torch.testing.assert_close(found.span[:, 0], difference / difference.norm())
    assert found.inflation == pytest.approx(1 / (1 - (2 / 2.125 + 0.8) / 6))


def test_a_direction_needs_two_examples() -> None:
    """Of 4 examples less 2 cells one direction is known, the widest: y."""
    found = fit_whitening(client_sums(ROWS, LABELS, 2))
    assert found is not None
    torch.testing.assert_close(found.basis, torch.tensor([[0.0], [4.25**-0.5]]).double())


def test_sums_of_clients_add_up_to_the_sums_of_all() -> None:
    one, other = client_sums(ROWS[:2], LABELS[:2], 2), client_sums(ROWS[2:], LABELS[2:], 2)
    for added, at_once in zip(one.plus(other), client_sums(ROWS, LABELS, 2), strict=True):
        assert torch.equal(torch.as_tensor(added), torch.as_tensor(at_once))


def test_a_client_sends_means_and_scatter_of_its_classes() -> None:
    """Class 1 has y = 1 and 5, whitened (-0.5, 3.5) / sqrt 2.125: scatter 8 / 2.125, halves 16 / 2.125 apart."""
    whitening = fit_whitening(client_sums(SIX, SIX_LABELS, 2))
    assert whitening is not None
    cells = client_cells(whitening, ROWS[2:], LABELS[2:], 3)
    assert cells["counts"].tolist() == [0, 2, 0]
    torch.testing.assert_close(cells["means"][1], torch.tensor([1.5 / 2.125**0.5, -0.5 / 0.625**0.5]))
    assert cells["scatter"].tolist() == pytest.approx([0, 8 / 2.125, 0])
    assert cells["halves"].tolist() == pytest.approx([0, 16 / 2.125, 0])
    inside = 4 / 2.125 * float(whitening.span[0, 0]) ** 2
    assert cells["inside"].tolist() == pytest.approx([0, 2 * inside, 0])
    assert cells["inside_squares"].tolist() == pytest.approx([0, 2 * inside**2, 0])
    assert cells["squares"].tolist() == [0, 0, 0]


def test_halves_are_every_other_example() -> None:
    """0 and 2 against 1 and 5: means 1 and 3."""
    assert float(halves_distance(torch.tensor([[0.0], [1.0], [2.0], [5.0]]))) == 4
    assert float(halves_distance(torch.tensor([[7.0]]))) == 0


@pytest.mark.parametrize("count", [3, 5, 40])
def test_the_trace_of_the_squared_covariance_has_no_bias(count: int) -> None:
    """A = diag(4, 1, 1): tr A^2 = 18. The trace of the squared scatter matrix would give 40 at three examples."""
    scales = torch.tensor([2.0, 1.0, 1.0]).double()
    rows = torch.randn(6000, count, 3, generator=generator(0, "cells"), dtype=torch.float64) * scales
    found = torch.stack([trace_of_square(own - own.mean(0)) for own in rows])
    assert abs(float(found.mean()) - 18) < 4 * float(found.std()) / 6000**0.5


def test_zeros_beside_the_embeddings_change_nothing() -> None:
    rows, labels = list(ROWS.split(2)), list(LABELS.split(2))
    narrow = summarise(federation(rows, labels)[0], ROWS)
    wide = summarise(federation(rows, labels)[0], torch.cat([ROWS, torch.zeros(4, 30)], dim=1))
    assert narrow is not None
    assert wide is not None
    torch.testing.assert_close(narrow.means, wide.means)
    torch.testing.assert_close(narrow.whitening.spread, wide.whitening.spread)


def test_a_held_out_client_has_cells_but_no_part_in_the_whitening() -> None:
    clients, embeddings = gaussian(["plain"] * 4)
    last = replace(clients.clients[-1], held_out=True)
    with_it = summarise(replace(clients, clients=(*clients.clients[:-1], last)), embeddings.examples)
    without = summarise(replace(clients, clients=clients.clients[:-1]), embeddings.examples)
    assert with_it is not None
    assert without is not None
    assert len(with_it) == 4
    assert int(with_it.counts[-1].sum()) == 60
    assert torch.equal(with_it.whitening.basis, without.whitening.basis)


def test_without_noise_to_know_there_is_no_summary() -> None:
    """Every cell has one example, or examples that do not differ."""
    alone = federation([ROWS[:1], ROWS[2:3]], [LABELS[:1], LABELS[2:3]])
    assert class_prototypes(*alone).summary is None
    same = federation([ROWS[:1].repeat(3, 1)], [LABELS[:1].repeat(3)])
    atlas = class_prototypes(*same)
    with raises(UsageError, "summary-missing", source="class_prototypes"):
        atlas.verdict()
    with raises(UsageError, "summary-missing"):
        atlas.groups()


def test_cells_of_another_shape_are_refused() -> None:
    clients, embeddings = gaussian(["plain"] * 3)
    found = summarise(clients, embeddings.examples)
    assert found is not None
    cells = {name: table[0] for name, table in found.cells().items()}
    with raises(UsageError, "wrong-shape", what="means"):
        found.add({**cells, "means": cells["means"][:, :3]})
    with raises(DataError, "wrong-shape", what="scatter"):
        replace(found, scatter=found.scatter[:, :2])
    with raises(DataError, "wrong-shape", what="inside"):
        replace(found, inside=found.inside * torch.nan)
    with raises(DataError, "content-unfit", what="halves"):
        Summary.from_tensors({n: t for n, t in found.tensors().items() if n != "halves"}, labelled=True)


def test_what_leaves_a_client_is_declared_as_it_is_sent() -> None:
    clients, embeddings = gaussian(["plain"] * 3)
    found = summarise(clients, embeddings.examples)
    assert found is not None
    declared = {str(own.name): own for own in summary_disclosures()}
    for name, table in found.cells().items():
        assert table.dtype == declared[name].dtype
        assert table.ndim - 1 == len(declared[name].axes)
    assert declared.keys() - found.cells().keys() == {"sums", "scatter_matrix"}
    assert all(own.axes[0] == 1 for own in summary_disclosures(labelled=False) if own.name != "scatter_matrix")


def test_an_atlas_takes_a_summary_of_its_clients_only() -> None:
    atlas = class_prototypes(*gaussian(["plain"] * 3))
    assert atlas.summary is not None
    with raises(DataError, "wrong-count", what="summary", got=2, wanted=3):
        replace(atlas, summary=atlas.summary.take(torch.tensor([0, 1])))
    assert Atlas(names=atlas.names, halves=atlas.halves, sizes=atlas.sizes).summary is None

import torch

from fedatlas.atlas.floor import noise_floor
from fedatlas.atlas.merge import Cells, cells_of
from fedatlas.atlas.sides import along_leading, split_sides, with_sides
from fedatlas.atlas.summary import summarise
from fedatlas.seeds import generator
from summaries import gaussian


def _cells(ways: torch.Tensor) -> Cells:
    """Return clients of three classes in four directions of noise 1; the first two are so far apart in the first."""
    clients = len(ways)
    rng = generator(0, "sides")
    means = torch.randn(3, clients, 4, generator=rng).double()
    means[0, :, 0] += ways / 2
    means[1, :, 0] -= ways / 2
    ones = torch.ones(3, clients).double()
    return Cells(means, ones / 4, torch.full((3, clients), 10), ones / 4)


def test_sides_that_no_two_clients_show_are_found_by_all() -> None:
    """A way of 5 with noise of 8 in its square: two clients' say little, forty's are sure."""
    truth = torch.tensor([0, 1] * 20)
    ways = torch.where(truth == 0, 5.0, -5.0)
    found = split_sides(_cells(ways), torch.zeros(40, dtype=torch.int64))
    assert float((found == truth).double().mean()) >= 0.95


def test_few_clients_of_many_directions_have_the_same_sides() -> None:
    """Three clients in four directions, or with three more of zeros only."""
    rows = torch.tensor([[2.0, 1.0, 0.0, 0.0], [-2.0, 0.0, 1.0, 0.0], [3.0, 0.0, 0.0, 1.0]]).double()
    found, more = along_leading(rows), along_leading(torch.cat([rows, torch.zeros(3, 4).double()]))
    assert torch.equal((found * found[0]).sign(), torch.tensor([1.0, -1.0, 1.0]).double())
    assert torch.equal((found * found[0]).sign(), (more * more[0]).sign()[:3])


def test_clients_that_agree_have_one_side() -> None:
    same = torch.zeros(40, dtype=torch.int64)
    assert torch.equal(split_sides(_cells(torch.full((40,), 5.0)), same), same)
    assert torch.equal(split_sides(_cells(torch.zeros(40)), same), same), "classes that nobody can tell apart"
    odd = torch.full((40,), 5.0)
    odd[7] = -5.0
    assert torch.equal(split_sides(_cells(odd), same), same), "one alone is a suspect"


def test_groups_that_need_no_split_stay_as_they_are() -> None:
    whole, embeddings = gaussian(["plain"] * 8 + ["shifted"] * 4)
    summary = summarise(whole, embeddings.examples)
    assert summary is not None
    names = [client.name for client in whole]
    groups = torch.tensor([0] * 8 + [1] * 4)
    assert with_sides(summary, names, groups) is groups
    assert torch.equal(split_sides(cells_of(summary, noise_floor(summary)), groups), groups)


def test_a_group_is_split_by_names_and_the_order_of_clients_does_not_matter() -> None:
    whole, embeddings = gaussian(["plain", "swapped"] * 6)
    summary = summarise(whole, embeddings.examples)
    assert summary is not None
    names = [client.name for client in whole]
    one = torch.zeros(12, dtype=torch.int64)
    assert with_sides(summary, names, one).tolist() == [0, 1] * 6
    order = torch.arange(11, -1, -1)
    turned = with_sides(summary.take(order), [names[i] for i in order.tolist()], one)
    assert turned.tolist() == [0, 1] * 6

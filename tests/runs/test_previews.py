"""What a run keeps of its clients for a report: little, whatever their number and the size of their images."""

from __future__ import annotations

import io

import numpy as np
import torch

from fedatlas.data import Client, Dataset, Federation
from fedatlas.runs.previews import LARGEST_SIDE, MOST_PICTURED, client_examples, pictured, portraits


def federation(clients: int, side: tuple[int, int] = (4, 6)) -> Federation:
    inputs = torch.arange(clients).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, *side).repeat(2, 1, 1, 1)
    data = Dataset(name="plain", inputs=inputs, labels=torch.zeros(2 * clients, dtype=torch.int64), classes=("one",))
    parts = [torch.tensor([i, clients + i]) for i in range(clients)]
    members = tuple(Client(name=f"client-{i}", train=part, test=part) for i, part in enumerate(parts))
    return Federation(data=data, clients=members, partition="pairs")


def test_the_first_of_each_domain_comes_before_the_second_of_any() -> None:
    domains = ["many"] * 100 + ["few"] * 2 + [None]
    assert pictured(domains) == [*range(57), 100, 101, 102]  # 57 of many, both of few, the one without a domain
    assert pictured(["a", "b", "a"]) == [0, 1, 2]


def test_few_clients_are_pictured_each_with_its_own_images() -> None:
    with np.load(io.BytesIO(portraits(federation(100)) or b"")) as file:
        assert len(file["vectors"]) == 100
        assert file["images"].shape == (MOST_PICTURED, 8, 1, 4, 6)
        assert file["images"][7, 0, 0, 0, 0] == file["pictured"][7] == 7
        assert (file["images"][:, 2:] == 255).all()  # two images a client, then white


def test_large_images_are_made_smaller_in_proportion() -> None:
    found = client_examples(federation(3, side=(96, 2 * 96)), [0, 2])
    assert found is not None
    images, labels = found
    assert labels.tolist() == [[0, 0] + [-1] * 6] * 2
    assert images.shape == (2, 8, 1, LARGEST_SIDE // 2, LARGEST_SIDE)
    assert (images[1, :2] == 2).all()

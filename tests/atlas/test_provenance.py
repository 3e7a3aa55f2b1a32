from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedatlas.adapting.adapter import Adapter
from fedatlas.algorithms import fedavg, fedgr, fedper
from fedatlas.algorithms.client2vec import client2vec
from fedatlas.atlas import Atlas, label_histogram
from fedatlas.atlas.from_run import run_atlas
from fedatlas.atlas.provenance import is_other
from fedatlas.data import Federation, Iid, NaturalId, Shard, federate, from_arrays
from fedatlas.data.partitions.basic import Share
from fedatlas.parts.algorithm import Algorithm
from fedatlas.runs.run import Run
from fedatlas.training.train import train

OTHER = r"the atlas says it was made of .*Make the atlas of these clients"


def iid(name: str = "mine", partition: Any = None, **settings: Any) -> Federation:
    inputs = torch.arange(96.0).reshape(48, 2) / 96
    data = from_arrays(inputs, torch.arange(48) % 3, name=name, owner=[f"owner {i % 4}" for i in range(48)])
    return federate(data, partition or Iid(num_clients=4), **settings)


def using(federation: Federation, algorithm: Algorithm, folder: Path) -> Run:
    return train(federation, algorithm, model="mlp", rounds=1, workers=1, progress=False, folder=folder)


@pytest.mark.parametrize(
    "other", [iid("yours"), iid(seed=1), iid(partition=Shard(num_clients=4)), iid("yours", seed=1)], ids=str
)
def test_an_atlas_of_other_data_with_the_same_names_and_sizes_is_told(other: Federation, tmp_path: Path) -> None:
    federation = iid()
    assert [(c.name, len(c.train)) for c in other] == [(c.name, len(c.train)) for c in federation]
    atlas = label_histogram(other)
    for recipe in (client2vec(atlas=atlas), fedgr(num_groups=2, atlas=atlas)):
        with pytest.warns(UserWarning, match=OTHER) as told:
            using(federation, recipe, tmp_path / recipe.name)
        assert len(told) == 1


def test_an_atlas_of_these_clients_is_used_without_a_word(tmp_path: Path) -> None:
    federation = iid()
    few = replace(federation, clients=tuple(replace(client, train=client.train[:3]) for client in federation))
    own = label_histogram(federation)
    atlases = {
        "own": own,
        "few": replace(label_histogram(few), sizes=own.sizes),
        "held out": label_histogram(iid(held_out=1)),
        "run": run_atlas(using(federation, fedper(), tmp_path / "fedper")),
        "plain": Atlas(names=own.names, halves=own.halves, sizes=own.sizes),
        "unnamed": label_histogram(iid("arrays")),
        "network": replace(own, provenance={"federation": "over a network"}),
    }
    for title, atlas in atlases.items():
        for recipe in (client2vec(fedavg(), atlas), fedgr(num_groups=2, atlas=atlas)):
            using(federation, recipe, tmp_path / f"{title} {recipe.name}")  # a warning would be an error
    owned = iid(partition=NaturalId())
    using(owned, client2vec(atlas=label_histogram(iid(partition=NaturalId(), seed=1))), tmp_path / "owners")


class Halves:
    """Is written with its place in memory."""

    def assign(self, data: Any, rng: Any) -> list[Share]:
        return [Share(name=f"client-{i}", indices=torch.arange(24 * i, 24 * i + 24).numpy()) for i in range(2)]


def test_what_cannot_be_compared_is_no_other() -> None:
    lines = [f"mine: {iid(partition=Halves()).partition}" for _ in range(2)]
    assert "at 0x" in lines[0]
    written = f"mine: {iid().partition}"
    for one, other in ((lines[0], lines[1]), (lines[0], written), ("", written), ("mine: by hand", written)):
        assert not is_other(one, other, ["client-0"])
    assert not is_other(f"{written}, fold 0 of 5", f"{written}, fold 1 of 5", ["client-0"])


def test_an_atlas_of_other_clients_than_the_runs_is_told_in_adapting(tmp_path: Path) -> None:
    federation = iid(held_out=1)
    adapter = Adapter(using(federation, fedper(), tmp_path), data=federation, algorithm=fedper())
    settings: dict[str, Any] = {"start": "nearest", "rounds": 1, "steps": 1}
    adapter.adapt_all(atlas=label_histogram(federation), **settings)
    with pytest.warns(UserWarning, match=OTHER):
        adapter.adapt_all(atlas=label_histogram(iid("yours", held_out=1)), **settings)

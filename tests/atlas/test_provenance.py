import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from claims import claim_again
from fedatlas import train
from fedatlas.adapting import Adapter
from fedatlas.algorithms import client2vec, fedavg, fedgr, fedper
from fedatlas.atlas import Atlas, label_histogram
from fedatlas.atlas.from_run import run_atlas
from fedatlas.atlas.provenance import is_other, made_of, origin_remark
from fedatlas.data import Federation, Iid, NaturalId, Origin, Shard, Share, federate, from_arrays
from fedatlas.parts import Algorithm
from fedatlas.runs import Run

OTHER = r"the atlas was made from .*Make the atlas of these clients"


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


def origin(**settings: Any) -> Origin:
    found = iid(**settings).origin
    assert found is not None
    return found


def test_federate_records_what_clients_were_made_of() -> None:
    expected = Origin(
        data="mine", rule="Iid(num_clients=4)", seed=3, test="client", test_fraction=0.25, held_out="['client-01']"
    )
    assert origin(seed=3, held_out=["client-01"]) == expected
    assert origin() == iid().hold_out([0]).to("cpu").origin
    assert iid().fold(1, 5).origin == replace(origin(), fold=1, folds=5)
    assert label_histogram(iid()).provenance["origin"] == asdict(origin())


def test_what_cannot_be_compared_is_not_other() -> None:
    assert "at 0x" in iid(partition=Halves()).partition
    assert origin(partition=Halves()).rule is None
    assert not is_other(origin(partition=Halves()), origin(), ["client-0"])
    here = made_of(iid())
    for record in (None, "over a network", {}, {"data": "mine"}):
        assert Origin.read(record) is None
        assert origin_remark({"federation": "yours: Iid()", "origin": record}, here, ["client-0"]) is None


def test_an_origin_is_read_from_the_record_that_it_was_written_as() -> None:
    for one in (origin(), origin(partition=Halves(), seed=7), origin(held_out=["client-01", "client-02"])):
        assert Origin.read(json.loads(json.dumps(asdict(one)))) == one
    known = {"data": "mine", "rule": "Iid(num_clients=4)", "seed": 0}
    assert Origin.read(known) == Origin(**known)


def test_a_run_of_an_older_version_says_nothing_of_its_origin(tmp_path: Path) -> None:
    federation = iid()
    run = using(federation, fedper(), tmp_path)
    assert run.resolved["federation"]["origin"] == asdict(origin())
    less = {"data": "mine", "rule": "Iid(num_clients=4)", "seed": 0}
    for written in (less, None):
        older = dict(run.resolved, federation={**run.resolved["federation"], "origin": written})
        (tmp_path / "resolved.json").write_text(json.dumps(older))
        claim_again(tmp_path)
        assert run_atlas(Run(tmp_path)).provenance["origin"] == written
        train(federation, fedper(), model="mlp", rounds=1, workers=1, progress=False, folder=tmp_path, resume=True)


def test_an_atlas_of_other_clients_than_the_runs_is_told_in_adapting(tmp_path: Path) -> None:
    federation = iid(held_out=1)
    adapter = Adapter(using(federation, fedper(), tmp_path), data=federation, algorithm=fedper())
    settings: dict[str, Any] = {"start": "nearest", "rounds": 1, "steps": 1}
    adapter.adapt_all(atlas=label_histogram(federation), **settings)
    with pytest.warns(UserWarning, match=OTHER):
        adapter.adapt_all(atlas=label_histogram(iid("yours", held_out=1)), **settings)

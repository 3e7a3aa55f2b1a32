from pathlib import Path

import pytest
import torch

from fedatlas import train
from fedatlas.adapting import Adapter
from fedatlas.algorithms import client2vec, fedavg, fedbn, fedgcr, fedpce, fedprox
from fedatlas.atlas.from_run import run_atlas
from fedatlas.errors import UsageError
from fedatlas.parts import Algorithm
from fedatlas.runs import Run
from fedatlas.testing import tiny_federation
from raising import raises

# One client of the tiny federation has one example.
pytestmark = pytest.mark.filterwarnings("ignore:client-2 will take no step")

SMALL = {"model": "cnn", "model_options": {"width": 4, "norm": "batch"}, "rounds": 2, "workers": 1, "progress": False}


def small_run(algorithm: Algorithm, folder: Path) -> Run:
    return train(tiny_federation("images"), algorithm, folder=folder, **SMALL)  # type: ignore[arg-type]


def test_embeddings_are_an_atlas_that_newcomers_can_join_and_any_use_takes(tmp_path: Path) -> None:
    algorithm = fedpce(embedding=4, hidden=8)
    run = small_run(algorithm, tmp_path / "run")
    adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm)
    adapted = adapter.adapt_all(rounds=1, steps=2)
    atlas = run_atlas(run, adapted=adapted)
    clients = run.resolved["federation"]["clients"]
    assert atlas.names == tuple(client["name"] for client in clients)
    assert atlas.domains == tuple(client["domain"] for client in clients)
    assert torch.equal(atlas.half("feature")[2], adapter.starts.known[2]["embedding.vector"])
    assert torch.equal(atlas.half("feature")[-1], adapted[-1].personal["embedding.vector"])
    assert len(atlas.groups(2)) == len(clients)
    assert atlas.map2d().shape == (len(clients), 2)
    using = client2vec(fedprox(), atlas=atlas, sample=True, aggregate=True, train=False)
    assert small_run(using, tmp_path / "using").last["accuracy"] > 0


def test_norms_make_an_atlas_without_their_statistics(tmp_path: Path) -> None:
    """The cnn of width 4 has norms of 4 and 8 channels: 24 scales and shifts, of which the first norm has 8."""
    run = small_run(fedbn(), tmp_path)
    assert run_atlas(run).half().shape == (6, 24)
    assert run_atlas(run, parameters=["norm1.weight", "norm1.bias"]).half().shape == (6, 8)
    with raises(UsageError, "unknown-name", got="norm9.weight"):
        run_atlas(run, parameters=["norm9.weight"])


def test_the_mean_prompts_of_fedgcr_are_an_atlas(tmp_path: Path) -> None:
    options = {"backbone": None, "weights": "untrained", "patch": 4, "width": 12, "depth": 1, "heads": 3}
    settings = {**SMALL, "model": "prompted_vit", "model_options": options}
    run = train(tiny_federation("images"), fedgcr(num_groups=2), folder=tmp_path, **settings)  # type: ignore[arg-type]
    atlas = run_atlas(run)
    memory = run.checkpoint().clients
    assert atlas.half().shape == (len(memory), 12)
    assert torch.equal(atlas.half()[0], memory[min(memory)]["group_customization"]["mean"])
    assert atlas.provenance["parameters"] == ["group_customization/mean"]


def test_a_run_that_keeps_nothing_with_its_clients_is_refused(tmp_path: Path) -> None:
    with raises(UsageError, "run-unfit", algorithm="fedavg"):
        run_atlas(small_run(fedavg(), tmp_path))

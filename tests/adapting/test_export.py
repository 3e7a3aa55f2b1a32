import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedatlas import train
from fedatlas.adapting.adapter import Adapter, adapt
from fedatlas.adapting.export import file_stem, load_personalised, read_about
from fedatlas.adapting.result import Adapted
from fedatlas.algorithms import fedavg, fedbn, fedpce, fedper
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.models import ConditionedClassifier, build_model
from fedatlas.parts import Algorithm
from fedatlas.testing import tiny_federation
from raising import raises
from tiny import Norms, blob_federation, image_run

# One client of the tiny federation has one example.
pytestmark = pytest.mark.filterwarnings("ignore:client-2 will take no step")

SMALL = {"rounds": 3, "steps": 4, "compare": False}


@pytest.mark.parametrize("norm", ["instance", "batch"])
@pytest.mark.parametrize("algorithm", [fedpce(embedding=4, hidden=8), fedbn(), fedper()], ids=lambda a: a.name)
def test_a_saved_model_says_what_the_adapted_one_says(algorithm: Algorithm, norm: str, tmp_path: Path) -> None:
    run = image_run(tmp_path / "run", algorithm, norm)
    adapter = Adapter(run, data=tiny_federation("images"), algorithm=algorithm)
    adapted = adapter.adapt("client-6", lr=0.05, **SMALL)  # type: ignore[arg-type]
    path = adapted.save(tmp_path / "out" / "client-6.safetensors")
    adapter.adapt("client-7", rounds=1, steps=1)  # another client's values in the same network
    images = torch.randn(5, 3, 8, 8)
    adapter.runner.bench.load({}, adapter.models.buffers, adapted.personal)
    expected = adapter.runner.bench.model.eval()(images)[1]
    loaded = load_personalised(path)
    assert torch.equal(loaded(images)[1], expected)
    assert torch.equal(adapted.model()(images)[1], expected)
    assert not any(isinstance(module, ConditionedClassifier) for module in loaded.modules())
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert read_about(path)["client"] == "client-6"
    # The state dict is that of the plain network by name, its counts of batches among them.
    for model in (loaded, adapted.model()):
        build_model("cnn", num_classes=3, input_shape=(3, 8, 8), width=4, norm=norm).load_state_dict(model.state_dict())


@pytest.mark.parametrize("head_norm", ["batch", "film"])
def test_a_saved_model_keeps_the_norm_before_its_head(head_norm: str, tmp_path: Path) -> None:
    federation = tiny_federation("images")
    algorithm = fedpce(embedding=4, hidden=8, head_norm=head_norm)
    options = {"width": 4, "norm": "layer", "head_norm": True, "stem": "cifar"}
    run = train(federation, algorithm, model="resnet18", model_options=options, rounds=1, folder=tmp_path / "run",
                workers=1, progress=False, cohort=2)  # fmt: skip
    adapted = adapt(run, "client-6", data=federation, algorithm=algorithm, rounds=1, steps=2)
    images = torch.randn(5, 3, 8, 8)
    loaded = load_personalised(adapted.save(tmp_path / "model.safetensors"))
    assert torch.equal(loaded(images)[1], adapted.model()(images)[1])


def test_a_model_of_ones_own_is_saved_as_a_state_dict(tmp_path: Path) -> None:
    federation = blob_federation(num_clients=3, held_out=1)
    run = train(federation, fedper(), model=Norms(), rounds=1, folder=tmp_path / "run", workers=1, progress=False)
    adapted: Adapted = adapt(run, 2, data=federation, model=Norms(), rounds=1, steps=1)
    path = adapted.save(tmp_path / "own.safetensors")
    with raises(UsageError, "model-unfit"):
        load_personalised(path)
    network = Norms()
    network.load_state_dict(load_file(path))
    inputs = torch.randn(3, 4)
    assert torch.equal(network.eval()(inputs)[1], adapted.model()(inputs)[1])
    (tmp_path / "no.safetensors").write_bytes(b"nothing")
    with raises(RunFolderError, "file-unreadable"):
        load_personalised(tmp_path / "no.safetensors")


def test_a_model_of_images_without_scaling_says_so_by_zeros_and_ones(tmp_path: Path) -> None:
    adapted = adapt(image_run(tmp_path, fedavg()), 6, data=tiny_federation("images"), **SMALL)  # type: ignore[arg-type]
    about = read_about(adapted.save(tmp_path / "model.safetensors"))
    assert (about["mean"], about["std"]) == ([0.0] * 3, [1.0] * 3)


ABOUT = {
    "model": "mlp",
    "options": {"hidden": [2]},
    "head_norm": "layer",
    "buffers": "all",
    "input_shape": [3],
    "vocabulary_size": 0,
    "classes": ["a", "b"],
    "mean": [],
    "std": [],
}


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{}", json.dumps({**ABOUT, "options": 3}), "null"])
def test_a_file_that_describes_no_network_is_one_error(text: str, tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "a.safetensors", {"fedatlas": text})
    with raises(RunFolderError, "file-unreadable"):
        load_personalised(tmp_path / "a.safetensors")


def test_a_file_of_a_network_cannot_name_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_model("resnet18", num_classes=2, input_shape=(3, 8, 8), width=4)
    about = {
        **ABOUT,
        "model": "resnet18",
        "options": {"width": 4, "pretrained": "some/weights"},
        "input_shape": [3, 8, 8],
    }
    save_file(network.state_dict(), tmp_path / "a.safetensors", {"fedatlas": json.dumps(about)})
    monkeypatch.setattr("fedatlas.models.pretrained.find_weights", lambda source: pytest.fail(f"looks for {source}"))
    assert load_personalised(tmp_path / "a.safetensors").state_dict().keys() == network.state_dict().keys()


def test_clients_of_different_names_are_saved_to_different_files_of_one_folder() -> None:
    names = ["a/b", "a%2Fb", "a\\b", "..", "../x", "/etc/x", "a\0b", "a\nb", "x" * 300, "x" * 301, "\ud800", ".bashrc"]
    stems = [file_stem(name) for name in names]
    assert len(set(stems)) == len(names)
    for stem in stems:
        assert Path(f"{stem}.safetensors").name == f"{stem}.safetensors"
        assert stem.isprintable()
        assert not stem.startswith(".")
        assert len(stem.encode()) <= 200

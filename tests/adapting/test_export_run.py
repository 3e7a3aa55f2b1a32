"""A run's network as files: read back by fedatlas, transformers and onnxruntime with the same outputs."""

import importlib.util
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import fedatlas
from commands import invoke
from fedatlas.adapting import export_run, load_personalised, read_about
from fedatlas.errors import UsageError
from fedatlas.testing import tiny_federation
from raising import raises

INSTALLED = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


def test_the_shared_model_and_a_client_s_come_back_with_the_same_outputs(tmp_path: Path) -> None:
    federation = tiny_federation()
    shared = fedatlas.train(federation, "fedavg", rounds=1, folder=tmp_path / "shared", progress=False)
    (file,) = export_run(shared, tmp_path / "out")
    inputs = shared.prepare(federation.data.inputs[:5])
    assert torch.equal(load_personalised(file)(inputs)[1], shared.model()(inputs)[1])
    kept = fedatlas.train(federation, "fedper", rounds=1, folder=tmp_path / "kept", progress=False)
    name = federation.clients[0].name
    (own,) = export_run(kept, tmp_path / "own", client=name)
    assert torch.equal(load_personalised(own)(inputs)[1], kept.model(name)(inputs)[1])
    with raises(UsageError, "missing-option", option="client"):
        export_run(kept, tmp_path / "none")
    with raises(UsageError, "model-unfit"):
        export_run(shared, tmp_path / "hf", forms=("huggingface",))
    with raises(UsageError, "unknown-name", got="pickle"):
        export_run(shared, tmp_path / "p", forms=("pickle",))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four clients in two named groups, one model each, from the command line."""
    top = tmp_path_factory.mktemp("grouped")
    rng = np.random.default_rng(0)
    owner = np.array(["ann", "bob", "cy", "di"]).repeat(12)
    np.savez(top / "mine.npz", x=rng.normal(size=(48, 5)), y=np.arange(48) % 3, owner=owner)
    settings = ['sharing.members=[["ann", "bob"], ["cy", "di"]]', 'atlas.use=["group"]', "model.hidden=[6]"]
    given = [word for setting in settings for word in ("--set", setting)]
    done = invoke("train", "-d", top / "mine.npz", "-m", "mlp", *given, "-r", 2, "-f", top / "run")
    assert done.exit_code == 0, done.output
    return top / "run"


WHOSE = {"group": ["--group", 1], "client": ["--client", "ann"]}


@pytest.mark.parametrize("whose", list(WHOSE))
def test_a_group_s_model_or_a_client_s_is_exported_by_the_command(whose: str, grouped: Path, tmp_path: Path) -> None:
    run = fedatlas.Run(grouped)
    done = invoke("export", grouped, *WHOSE[whose], "--to", tmp_path)
    assert done.exit_code == 0, done.output
    inputs = torch.linspace(-1, 1, 20).reshape(4, 5)
    own, other = (run.model(group=1), run.model(group=0)) if whose == "group" else (run.model("ann"), run.model("cy"))
    found = load_personalised(tmp_path / "model.safetensors")(inputs)[1]
    assert torch.equal(found, own(inputs)[1])
    assert not torch.equal(found, other(inputs)[1])
    about = read_about(tmp_path / "model.safetensors")
    assert (about["group"], about["client"]) == ((1, None) if whose == "group" else (None, "ann"))


@pytest.mark.parametrize("wrong", [[], ["--group", 2], ["--client", "eve"], ["--group", 0, "--huggingface"]])
def test_an_export_of_a_model_that_is_not_there_is_refused_in_one_message(
    wrong: list[object], grouped: Path, tmp_path: Path
) -> None:
    done = invoke("export", grouped, *wrong, "--to", tmp_path / "out")
    assert done.exit_code == 2
    assert done.output.startswith("error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="the packages onnx, onnxscript and onnxruntime are not all installed")
@pytest.mark.parametrize("whose", [*WHOSE, "shared"])
def test_onnxruntime_gives_the_outputs_of_the_shared_a_group_s_and_a_client_s_model(
    whose: str, grouped: Path, tmp_path: Path
) -> None:
    import onnxruntime

    folder = grouped
    if whose == "shared":
        folder = tmp_path / "run"
        fedatlas.train(tiny_federation("images"), "fedavg", model="cnn", rounds=1, folder=folder, progress=False)
    run = fedatlas.Run(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = invoke("export", folder, *WHOSE.get(whose, []), "--onnx", "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    shape = run.resolved["federation"]["form"]["shape"]
    inputs = torch.linspace(-1, 1, 3 * math.prod(shape)).reshape(3, *shape)
    wanted = run.model(**{"group": 1} if whose == "group" else {"client": "ann"} if whose == "client" else {})(inputs)[
        1
    ]
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    np.testing.assert_allclose(session.run(None, {"inputs": inputs.numpy()})[1], wanted.numpy(), atol=1e-5)
    assert torch.equal(load_personalised(tmp_path / "out" / "model.safetensors")(inputs)[1], wanted)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="the packages onnx, onnxscript and onnxruntime are not all installed")
def test_a_hugging_face_data_set_and_model_are_trained_and_read_by_transformers_and_onnxruntime(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import onnxruntime

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(
        tmp_path / "vit"
    )
    datasets = pytest.importorskip("datasets")
    images = [Image.fromarray(one) for one in np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), np.uint8)]
    form = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b", "c"]), site=datasets.Value("string")
    )
    rows = {"image": images, "label": [i % 3 for i in range(24)], "site": [f"site {i % 2}" for i in range(24)]}
    datasets.Dataset.from_dict(rows, features=form).save_to_disk(str(tmp_path / "data"))
    data = fedatlas.from_huggingface(datasets.load_from_disk(str(tmp_path / "data")), owner="site")
    federation = fedatlas.federate(data)
    assert [client.name for client in federation] == ["site 0", "site 1"]
    model = f"hf:{tmp_path / 'vit'}"
    run = fedatlas.train(federation, "fedavg", model=model, rounds=1, folder=tmp_path / "run", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, onnx, folder = export_run(run, tmp_path / "out", forms=("safetensors", "onnx", "huggingface"))
    inputs = run.prepare(federation.data.inputs[:4])
    wanted = run.model()(inputs)[1]
    (_, logits) = onnxruntime.InferenceSession(str(onnx)).run(None, {"inputs": inputs.numpy()})
    np.testing.assert_allclose(logits, wanted.numpy(), atol=1e-5)
    backbone, head = transformers.AutoModel.from_pretrained(folder).eval(), load_file(folder / "head.safetensors")
    with torch.no_grad():
        features = backbone(pixel_values=inputs).pooler_output
    torch.testing.assert_close(features @ head["weight"].T + head["bias"], wanted)
    assert backbone.config.id2label == {0: "a", 1: "b", 2: "c"}

"""A run's network as files: read back by fedatlas, transformers and onnxruntime with the same outputs."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedatlas
from fedatlas.adapting import export_run, load_personalised
from fedatlas.errors import UsageError
from fedatlas.testing.tiny import tiny_federation
from raising import raises

INSTALLED = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


def pictures() -> fedatlas.Federation:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (24, 3, 16, 16), np.uint8)
    data = fedatlas.from_arrays(images, np.arange(24) % 3, classes=["a", "b", "c"])
    return fedatlas.federate(data, fedatlas.data.Iid(num_clients=2))


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


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="the packages onnx, onnxscript and onnxruntime are not all installed")
def test_a_hugging_face_model_is_trained_and_read_by_transformers_and_onnxruntime(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import onnxruntime

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(
        tmp_path / "vit"
    )
    federation = pictures()
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

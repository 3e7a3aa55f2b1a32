import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedatlas.errors import UsageError
from fedatlas.models import Classifier, build_model
from fedatlas.models.hub import HubClassifier
from raising import raises

transformers = pytest.importorskip("transformers")

VIT = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "image_size": 16,
    "patch_size": 8,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny backbones as ``save_pretrained`` writes them."""
    torch.manual_seed(0)
    resnet = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    text = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    clip = transformers.CLIPConfig(text_config=text | {"vocab_size": 9}, vision_config=VIT, projection_dim=4)
    backbones = {
        "vit": transformers.ViTModel(transformers.ViTConfig(**VIT)),
        "vit-without-pooler": transformers.ViTModel(transformers.ViTConfig(**VIT), add_pooling_layer=False),
        "resnet": transformers.ResNetModel(resnet),
        "clip": transformers.CLIPModel(clip),
        "bert": transformers.BertModel(transformers.BertConfig(**text, vocab_size=9)),
    }
    root = tmp_path_factory.mktemp("backbones")
    for name, backbone in backbones.items():
        backbone.save_pretrained(root / name)
    return {name: root / name for name in backbones}


def build(folder: Path, shape: tuple[int, int, int] = (3, 16, 16), **options: Any) -> HubClassifier:
    model = build_model(f"hf:{folder}", num_classes=3, input_shape=shape, **options)
    assert isinstance(model, HubClassifier)
    return model


@pytest.mark.parametrize(
    ("name", "pooling", "width"),
    [("vit", "pooler", 8), ("vit-without-pooler", "cls", 8), ("resnet", "pooler", 6), ("clip", "pooler", 8)],
)
def test_a_backbone_gets_the_pooling_it_was_trained_for_and_a_head(
    folders: dict[str, Path], name: str, pooling: str, width: int
) -> None:
    model = build(folders[name])
    assert model.pooling == pooling
    assert model.training
    features, logits = model(torch.randn(2, 3, 16, 16))
    assert features.shape == (2, width) == (2, model.num_features)
    torch.testing.assert_close(logits, model.head(features))


@pytest.mark.parametrize("name", ["vit", "vit-without-pooler", "clip"])
def test_every_trainable_parameter_gets_a_gradient(folders: dict[str, Path], name: str) -> None:
    model = build(folders[name])
    model(torch.randn(2, 3, 16, 16))[1].square().sum().backward()
    idle = [key for key, value in model.named_parameters() if value.grad is None]
    assert idle == [key for key, value in model.named_parameters() if not value.requires_grad]
    assert bool(idle) == (name == "vit-without-pooler")


def test_pooling_can_be_chosen(folders: dict[str, Path]) -> None:
    inputs = torch.randn(2, 3, 16, 16)
    cls, mean = build(folders["vit"], pooling="cls").eval(), build(folders["vit"], pooling="mean").eval()
    tokens = cls.outputs(inputs).last_hidden_state
    torch.testing.assert_close(cls(inputs)[0], tokens[:, 0])
    torch.testing.assert_close(mean(inputs)[0], tokens.mean(1))
    maps = build(folders["resnet"], pooling="mean").eval()
    torch.testing.assert_close(maps(inputs)[0], maps.outputs(inputs).pooler_output.flatten(1))


def test_images_are_resized_to_what_the_backbone_expects(folders: dict[str, Path]) -> None:
    model = build(folders["vit"], (3, 8, 8)).eval()
    assert model.image_size == 16
    inputs = torch.randn(2, 3, 8, 8)
    larger = nn.functional.interpolate(inputs, size=(16, 16), mode="bilinear", align_corners=False)
    torch.testing.assert_close(model(inputs)[0], model(larger)[0])
    assert build(folders["resnet"], (3, 8, 8)).image_size is None
    assert build(folders["resnet"], (3, 8, 8), image_size=12).image_size == 12


def test_grey_images_are_repeated_and_other_channels_refused(folders: dict[str, Path]) -> None:
    model = build(folders["vit"], (1, 16, 16)).eval()
    inputs = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(model(inputs)[0], model(inputs.repeat(1, 3, 1, 1))[0])
    with raises(UsageError, "kind-mismatch", got=4, wanted=3):
        build(folders["vit"], (4, 16, 16))


def test_a_frozen_backbone_trains_only_the_head_and_keeps_its_batch_norms(folders: dict[str, Path]) -> None:
    model = build(folders["resnet"], frozen=True)
    assert [key for key, value in model.named_parameters() if value.requires_grad] == ["head.weight", "head.bias"]
    before = {key: value.clone() for key, value in model.named_buffers()}
    model.train()
    model(torch.randn(4, 3, 16, 16))[1].sum().backward()
    assert all(torch.equal(value, before[key]) for key, value in model.named_buffers())
    assert model.head.weight.grad is not None


def test_the_backbone_keeps_its_weights_and_the_seed_sets_the_head(folders: dict[str, Path]) -> None:
    models = [build(folders["vit"], seed=seed) for seed in (0, 0, 1)]
    first, again, other = (model.state_dict() for model in models)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert [key for key in first if not torch.equal(first[key], other[key])] == ["head.weight", "head.bias"]


def test_a_cohort_of_backbones_runs_under_vmap(folders: dict[str, Path]) -> None:
    models: list[Classifier] = [build(folders["vit"], seed=seed) for seed in range(2)]
    parameters, buffers = stack_module_state(list[nn.Module](models))
    inputs = torch.randn(2, 3, 3, 16, 16)

    def loss(state: dict[str, Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(models[0], state, (inputs,))[1]
        return logits.square().sum()

    together = vmap(grad(loss))(parameters | buffers, inputs)
    models[1](inputs[1])[1].square().sum().backward()
    torch.testing.assert_close(together["head.weight"][1], models[1].head.weight.grad)


def test_a_model_that_cannot_be_used_says_why(folders: dict[str, Path], tmp_path: Path) -> None:
    with raises(UsageError, "kind-mismatch", wanted="images"):
        build(folders["bert"])
    with raises(UsageError, "kind-mismatch", setting="pooling"):
        build(folders["resnet"], pooling="cls")
    with raises(UsageError, "unknown-name", kind="pooling", got="max"):
        build(folders["vit"], pooling="max")
    with raises(UsageError, "wrong-shape", setting="image_size"):
        build(folders["vit"], image_size=12)
    with raises(UsageError, "source-unavailable", source=str(tmp_path)) as caught:
        build(tmp_path)
    assert "save_pretrained" in str(caught.value)
    with raises(UsageError, "kind-mismatch", got="features"):
        build_model(f"hf:{folders['vit']}", num_classes=3, input_shape=(6,))


def test_without_transformers_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with raises(UsageError, "package-missing", package="transformers") as caught:
        build_model("hf:google/vit-base-patch16-224", num_classes=3, input_shape=(3, 16, 16))
    assert "fedatlas[hub]" in str(caught.value)

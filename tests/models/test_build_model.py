"""Every model by name: the contract that the algorithms rely on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedatlas.errors import UsageError
from fedatlas.models import MODELS, Classifier, build_model, model_options

IMAGE: dict[str, Any] = {"num_classes": 5, "input_shape": (3, 16, 16)}
TOKENS: dict[str, Any] = {"num_classes": 5, "input_shape": (6,), "vocabulary_size": 7}
SETTINGS: dict[str, dict[str, Any]] = {
    "mlp": IMAGE | {"hidden": (12, 9)},
    "cnn": IMAGE | {"width": 4},
    "resnet18": IMAGE | {"width": 4, "norm": "group"},
    "mobilenet_v2": IMAGE | {"width": 0.1, "norm": "layer", "stem_stride": 1},
    "cct_7_3x1": IMAGE,
    "vit": IMAGE | {"width": 8, "depth": 1, "heads": 2},
    "prompted_vit": IMAGE | {"weights": "untrained", "width": 8, "depth": 1, "heads": 2},
    "char_lstm": TOKENS | {"hidden": 8},
}


def tiny(name: str, seed: int = 0) -> Classifier:
    return build_model(name, seed=seed, **SETTINGS[name])


def batch(name: str, *leading: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = SETTINGS[name]["input_shape"]
    if "vocabulary_size" in SETTINGS[name]:
        return torch.randint(0, SETTINGS[name]["vocabulary_size"], (*leading, *shape), generator=generator)
    return torch.randn(*leading, *shape, generator=generator)


def test_every_model_has_a_setting_here() -> None:
    assert SETTINGS.keys() == MODELS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_head_of_the_features(name: str) -> None:
    model = tiny(name)
    features, logits = model(batch(name, 2))
    assert features.shape == (2, model.num_features)
    assert logits.shape == (2, 5)
    assert isinstance(model.head, nn.Linear)
    torch.testing.assert_close(logits, model.head(features))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_parameters_whatever_the_global_state(name: str) -> None:
    torch.manual_seed(1)
    first = tiny(name, seed=3).state_dict()
    torch.manual_seed(2)
    again = tiny(name, seed=3).state_dict()
    other = tiny(name, seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize("name", MODELS)
def test_building_leaves_the_global_random_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    tiny(name)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", MODELS)
def test_a_cohort_under_vmap_gives_each_model_its_own_loss_and_gradients(name: str) -> None:
    models = [tiny(name, seed) for seed in range(2)]
    parameters, buffers = stack_module_state(list[nn.Module](models))
    inputs, labels = batch(name, 2, 3), torch.tensor([[0, 1, 2], [3, 4, 0]])

    def loss(state: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(models[0], state, (inputs,))[1]
        return nn.functional.cross_entropy(logits, labels)

    together = vmap(grad(loss))(parameters | buffers, inputs, labels)
    vmap(loss)(parameters | buffers, inputs, labels)
    for i, model in enumerate(models):
        nn.functional.cross_entropy(model(inputs[i])[1], labels[i]).backward()
        for key, value in model.named_parameters():
            if not value.requires_grad:
                continue  # frozen
            assert value.grad is not None
            torch.testing.assert_close(together[key][i], value.grad, rtol=1e-3, atol=1e-4)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown model 'resnet17'. Did you mean 'resnet18'\?.*hf:NAME_OR_FOLDER"):
        build_model("resnet17", num_classes=2, input_shape=(3, 8, 8))


def test_an_unknown_option_lists_the_model_s_options() -> None:
    with pytest.raises(UsageError, match=r"'cnn' 'widht'. Did you mean 'width'\? Known: norm, width"):
        build_model("cnn", num_classes=2, input_shape=(3, 8, 8), widht=4)
    assert model_options("cnn") == {"width": 32, "norm": "none"}
    assert model_options("hf:anything").keys() == {"pooling", "image_size", "frozen"}


@pytest.mark.parametrize("name", ["cnn", "resnet18", "mobilenet_v2", "cct_7_3x1", "mlp"])
def test_an_image_model_refuses_tokens(name: str) -> None:
    with pytest.raises(UsageError, match=rf"model '{name}' reads images.*got tokens of shape \(6,\).*\(char_lstm\)"):
        build_model(name, num_classes=2, input_shape=(6,), vocabulary_size=7)


def test_the_lstm_refuses_images_and_features() -> None:
    for shape, fitting in (((3, 8, 8), "cct_7_3x1, .*, mlp, cnn, vit"), ((6,), "mlp")):
        with pytest.raises(UsageError, match=rf"'char_lstm' reads tokens.*Choose another model \({fitting}\)"):
            build_model("char_lstm", num_classes=2, input_shape=shape)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"hidden": (0,)}, "hidden must be a whole number"),
        ("mlp", {"hidden": 200}, "hidden must be a sequence"),
        ("cnn", {"width": "8"}, "width must be a whole number"),
        ("cnn", {"norm": "bach"}, "unknown norm 'bach'. Did you mean 'batch'"),
        ("resnet18", {"stem": "imagenet1k"}, "unknown stem"),
        ("mobilenet_v2", {"stem_stride": 3}, "stem_stride must be 1 or 2"),
        ("mobilenet_v2", {"width": 0.0}, "width must be above 0"),
        ("cct_7_3x1", {"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_a_wrong_option_says_what_it_must_be(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_model(name, num_classes=2, input_shape=(3, 16, 16), **options)


@pytest.mark.parametrize(
    ("shape", "vocabulary_size", "message"),
    [
        ((3, 8), 0, "input_shape must be"),
        ((3, 0, 8), 0, "input_shape must be"),
        ((3, 8, 8), 5, "vocabulary_size must be 0"),
    ],
)
def test_a_wrong_input_form_is_refused(shape: tuple[int, ...], vocabulary_size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_model("mlp", num_classes=2, input_shape=shape, vocabulary_size=vocabulary_size)
    with pytest.raises(UsageError, match="num_classes must be a whole number"):
        build_model("mlp", num_classes=0, input_shape=(4,))

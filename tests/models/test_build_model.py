"""Every model by name: the contract that the algorithms rely on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedatlas.errors import UsageError
from fedatlas.models import MODELS, Classifier, build_model, model_options
from raising import raises

IMAGE: dict[str, Any] = {"num_classes": 5, "input_shape": (3, 16, 16)}
TOKENS: dict[str, Any] = {"num_classes": 5, "input_shape": (6,), "vocabulary_size": 7}
SETTINGS: dict[str, dict[str, Any]] = {
    "mlp": IMAGE | {"hidden": (12, 9)},
    "linear": IMAGE,
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
    with raises(UsageError, "unknown-name", kind="model", got="resnet17") as caught:
        build_model("resnet17", num_classes=2, input_shape=(3, 8, 8))
    assert "mean 'resnet18'" in str(caught.value)
    assert "hf:NAME_OR_FOLDER" in str(caught.value)


def test_an_unknown_option_lists_the_model_s_options() -> None:
    with raises(UsageError, "unknown-name", got="widht", known=["norm", "width"]):
        build_model("cnn", num_classes=2, input_shape=(3, 8, 8), widht=4)
    assert model_options("cnn") == {"width": 32, "norm": "none"}
    assert model_options("hf:anything").keys() == {"pooling", "image_size", "frozen"}


@pytest.mark.parametrize("name", ["cnn", "resnet18", "mobilenet_v2", "cct_7_3x1", "mlp", "linear"])
def test_an_image_model_refuses_tokens(name: str) -> None:
    with raises(UsageError, "kind-mismatch", model=name, got="tokens", fitting="char_lstm"):
        build_model(name, num_classes=2, input_shape=(6,), vocabulary_size=7)


def test_the_lstm_refuses_images_and_features() -> None:
    with raises(UsageError, "kind-mismatch", model="char_lstm", got="image") as caught:
        build_model("char_lstm", num_classes=2, input_shape=(3, 8, 8))
    assert {"cnn", "mlp", "vit"} < set(caught.value.fields["fitting"].split(", "))
    with raises(UsageError, "kind-mismatch", model="char_lstm", got="features", fitting="mlp, linear"):
        build_model("char_lstm", num_classes=2, input_shape=(6,))


@pytest.mark.parametrize(
    ("name", "options", "code", "fields"),
    [
        ("mlp", {"hidden": (0,)}, "out-of-range", {"setting": "hidden", "got": 0}),
        ("mlp", {"hidden": 200}, "wrong-type", {"setting": "hidden", "got": 200}),
        ("cnn", {"width": "8"}, "out-of-range", {"setting": "width", "got": "8"}),
        ("cnn", {"norm": "bach"}, "unknown-name", {"kind": "norm", "got": "bach"}),
        ("resnet18", {"stem": "imagenet1k"}, "unknown-name", {"kind": "stem", "got": "imagenet1k"}),
        ("mobilenet_v2", {"stem_stride": 3}, "out-of-range", {"setting": "stem_stride", "got": 3}),
        ("mobilenet_v2", {"width": 0.0}, "out-of-range", {"setting": "width", "got": 0.0}),
        ("cct_7_3x1", {"dropout": 1.0}, "out-of-range", {"setting": "dropout", "got": 1.0}),
    ],
)
def test_a_wrong_option_is_named(name: str, options: dict[str, Any], code: str, fields: dict[str, Any]) -> None:
    with raises(UsageError, code, **fields):
        build_model(name, num_classes=2, input_shape=(3, 16, 16), **options)


@pytest.mark.parametrize(
    ("shape", "vocabulary_size", "code", "got"),
    [
        ((3, 8), 0, "wrong-shape", (3, 8)),
        ((3, 0, 8), 0, "wrong-shape", (3, 0, 8)),
        ((3, 8, 8), 5, "vocabulary", 5),
    ],
)
def test_a_wrong_input_form_is_refused(shape: tuple[int, ...], vocabulary_size: int, code: str, got: object) -> None:
    with raises(UsageError, code, got=got):
        build_model("mlp", num_classes=2, input_shape=shape, vocabulary_size=vocabulary_size)
    with raises(UsageError, "out-of-range", setting="num_classes"):
        build_model("mlp", num_classes=0, input_shape=(4,))


@pytest.mark.attack("a server means harm")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"hidden": (10**6, 10**6)}),
        ("mlp", {"hidden": (60_000, 60_000)}),
        ("mlp", {"hidden": (2**62,)}),
        ("mlp", {"hidden": (1,) * 100_000}),
        ("cnn", {"width": 10**6}),
        ("cnn", {"width": 2**61}),
        ("vit", {"depth": 10**9, "width": 8, "heads": 1}),
    ],
)
def test_a_model_larger_than_the_memory_is_not_built(name: str, options: dict[str, Any], monkeypatch: Any) -> None:
    monkeypatch.setattr("fedatlas.models.build.physical_memory", lambda: 10**9)
    monkeypatch.setattr("fedatlas.models.build.MOST_TENSORS", 500)
    before = torch.get_rng_state()
    with raises(UsageError, "out-of-memory", model=name):
        build_model(name, num_classes=2, input_shape=(3, 32, 32), **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert build_model("linear", num_classes=2, input_shape=(3,)).head.weight.shape == (2, 3)

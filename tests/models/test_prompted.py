import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from fedatlas.algorithms import AmplitudeNormalised
from fedatlas.errors import UsageError
from fedatlas.models.classifier import InputForm
from fedatlas.models.frozen_outputs import KeptPasses
from fedatlas.models.prompted import CustomizedClassifier, PromptedClassifier, TypePrompted, prompted_vit
from fedatlas.models.vit import SHIPPED, TransformerClassifier, vit
from fedatlas.parts import Adam
from raising import raises
from tiny import same_bits

OWN: dict[str, Any] = {"patch": 4, "width": 16, "depth": 2, "heads": 2}
IMAGE = (3, 16, 16)
HUB_VIT = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 16,
    "patch_size": 8,
}


def build(shape: tuple[int, ...] = IMAGE, seed: int = 0, **options: Any) -> PromptedClassifier:
    settings = {"weights": "untrained", **OWN, **options}
    if "backbone" in options:
        del settings["weights"]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return prompted_vit(5, InputForm(shape=shape), **settings)


def customized(shape: tuple[int, ...] = IMAGE, seed: int = 0, **options: Any) -> CustomizedClassifier:
    model = build(shape, seed, gc_net=True, **options)
    assert isinstance(model, CustomizedClassifier)
    return model


def images(count: int, shape: tuple[int, ...] = IMAGE, seed: int = 0) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def trained(model: nn.Module) -> list[str]:
    return [name for name, value in model.named_parameters() if value.requires_grad]


def test_only_prompts_head_and_gc_net_are_trained() -> None:
    assert trained(build()) == ["prompts", "head.weight", "head.bias"]
    gc_net = [f"gc_net.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
    assert trained(customized()) == ["prompts", "head.weight", "head.bias", *gc_net]


def test_the_numbers_of_parameters_are_the_paper_s() -> None:
    """A ViT-B's width 768, ten classes: prompts 4 * 768 = 3,072, GC-Net 768 * 3072 + 3072 + 3072 * 768 + 768 =
    4,722,432, head 7,690."""
    model = prompted_vit(
        10, InputForm(shape=IMAGE), weights="untrained", gc_net=True, patch=8, width=768, depth=1, heads=12
    )
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert (model.prompts.numel(), sizes["gc_net"], sizes["head"]) == (3_072, 4_722_432, 7_690)


@pytest.mark.parametrize("gc_net", [False, True])
def test_logits_are_the_head_of_the_features(gc_net: bool) -> None:
    model = build(gc_net=gc_net)
    features, logits = model(images(3))
    assert features.shape == (3, 16)
    torch.testing.assert_close(logits, model.head(features))


@pytest.mark.parametrize("training", [False, True])
def test_a_batch_gives_what_its_images_give_alone(training: bool) -> None:
    """The published code gives an image the shifts of other images of its batch; each must have its own."""
    model = customized().train(training)
    batch = images(6)
    together = model(batch)[0]
    alone = torch.cat([model(image[None])[0] for image in batch])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_mixing_in_the_batch_is_the_published_code_s_in_training_only() -> None:
    """Two prompts, three images: the shifts of slots (image, prompt) are those of images 0 1, 2 0, 1 2."""
    plain = build(num_prompts=2)
    model = CustomizedClassifier(plain, mix_in_batch=True)
    batch = images(3)
    h = model.type_prompts(batch)
    base = model.prompts
    expected = base[None] + h[torch.tensor([[0, 1], [2, 0], [1, 2]])]
    torch.testing.assert_close(model.train().prompt_tokens(batch), expected)
    torch.testing.assert_close(model.eval().prompt_tokens(batch), base[None] + h[:, None])


def test_without_shift_it_is_the_plain_model() -> None:
    plain = build().eval()
    model = CustomizedClassifier(plain).eval()
    last = model.gc_net[2]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    batch = images(4)
    torch.testing.assert_close(model(batch)[0], plain(batch)[0])
    assert isinstance(model, TypePrompted)
    assert not isinstance(plain, TypePrompted)


def test_the_shift_is_gc_net_of_the_class_token_of_a_pass_without_prompts() -> None:
    model = customized().eval()
    batch = images(4)
    token = model.encoder.encode(model.encoder.embed(batch))
    torch.testing.assert_close(model.first_pass(batch), token)
    torch.testing.assert_close(model.type_prompts(batch), model.gc_net(token))
    assert not model.first_pass(batch).requires_grad
    assert model.type_prompts(batch).requires_grad


def test_prompts_begin_with_a_standard_deviation_of_two_hundredths_whatever_their_rate() -> None:
    for rate in (1.0, 10.0):
        model = build(num_prompts=200, prompt_rate=rate)
        assert float(model.prompts.detach().std()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("make", [build, customized])
def test_a_step_moves_the_prompts_by_their_rate_and_decays_them_as_the_rest(make: Any) -> None:
    """The first step of AdamW is its rate, whatever the gradient, beside a decay of the rate times 0.01: 0.001 for the
    head, and for the prompts ten times that; so it is in a model inside another."""
    model = AmplitudeNormalised(make(prompt_rate=10.0), 3, 0)
    names = trained(model)
    parameters = [value for name, value in model.named_parameters() if name in names]
    before = {name: value.detach().clone() for name, value in zip(names, parameters, strict=True)}
    optimizer = Adam(lr=0.001, weight_decay=0.01, decoupled=True).fitted(model, names)
    state = optimizer.slots(optimizer.init(dict(zip(names, parameters, strict=True))), names)
    with torch.no_grad():
        optimizer.step(parameters, state, lambda: [torch.ones_like(value) for value in parameters], 0.001)
    for name, value in zip(names, parameters, strict=True):
        rate = 0.01 if name == "model.prompts" else 0.001
        torch.testing.assert_close(value.detach(), before[name] * (1 - rate * 0.01) - rate)


def test_the_features_drop_out_in_training_only_and_the_first_pass_never() -> None:
    model = customized(dropout=0.5)
    batch = images(8)
    assert bool((model.train()(batch)[0] == 0).any())
    assert not model.encoder.training
    torch.testing.assert_close(model.eval()(batch)[0], customized().eval()(batch)[0])


def test_the_first_pass_is_computed_once_for_a_batch_and_anew_when_anything_changed() -> None:
    model = customized()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    assert isinstance(model.encoder, nn.Module)
    model.encoder.get_submodule("norm").register_forward_hook(count)
    batch = images(3)
    for _ in range(3):
        model.first_pass(batch)
    assert calls == 1
    first = model.first_pass(batch).clone()
    model.first_pass(batch.clone())
    assert calls == 2
    batch += 1
    assert not torch.equal(model.first_pass(batch), first)
    assert calls == 3
    kept = model.first_pass(batch).clone()
    model.encoder.load_state_dict({name: value + 0.1 for name, value in model.encoder.state_dict().items()})
    assert not torch.equal(model.first_pass(batch), kept)
    with torch.inference_mode():
        model(images(2))


def test_a_client_s_examples_are_passed_once_in_a_run_unless_something_changes_them() -> None:
    model = customized().eval()
    passed: list[int] = []
    model.encoder.get_submodule("patches").register_forward_hook(lambda *given: passed.append(len(given[-1])))
    pool = images(6)
    kept = KeptPasses(torch.tensor([4, 1, 3]), lambda indices: pool[indices])

    def batch(*indices: int) -> Tensor:
        shown = pool[torch.tensor(indices)]
        kept.show(shown, torch.tensor(indices))
        return shown

    first = model.first_pass(batch(3, 1))
    assert passed == [3]  # the whole client
    torch.testing.assert_close(first, model._first_pass(pool[torch.tensor([3, 1])]))
    passed.clear()
    assert torch.equal(model.first_pass(batch(1, 4, 3))[[2, 0]], first)
    assert passed == []
    changed = batch(3, 1)
    changed += 1
    assert not torch.allclose(model.first_pass(changed), first)
    model.encoder.load_state_dict({name: value + 0.1 for name, value in model.encoder.state_dict().items()})
    assert not torch.allclose(model.first_pass(batch(3, 1)), first)


def test_other_trained_parameters_and_other_encoders_can_be_called_without_a_trace() -> None:
    model, other = customized(seed=0), customized(seed=1)
    batch = images(3)
    mine, theirs = model(batch)[1], other(batch)[1]
    assert not torch.allclose(mine, theirs)
    torch.testing.assert_close(functional_call(model, other.state_dict(), (batch,))[1], theirs)
    torch.testing.assert_close(model(batch)[1], mine)
    some: dict[str, Tensor] = {name: value for name, value in other.named_parameters() if value.requires_grad}
    expected = copy.deepcopy(model)
    expected.load_state_dict(model.state_dict() | some)
    torch.testing.assert_close(functional_call(model, some, (batch,))[1], expected(batch)[1])


def test_a_model_that_has_run_can_be_copied_and_pickled() -> None:
    model = customized().eval()
    batch = images(2)
    before = model(batch)[1]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(batch)[1], before)


def test_a_cohort_under_vmap_gives_each_model_its_own_gradients() -> None:
    models = [customized(seed=seed) for seed in range(2)]
    parameters, buffers = stack_module_state(list[nn.Module](models))
    inputs, labels = torch.stack([images(3, seed=1), images(3, seed=2)]), torch.tensor([[0, 1, 2], [3, 4, 0]])

    def loss(state: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(models[0], state, (inputs,))[1], labels)

    together = vmap(grad(loss))(parameters | buffers, inputs, labels)
    for i, model in enumerate(models):
        nn.functional.cross_entropy(model(inputs[i])[1], labels[i]).backward()
        for name in trained(model):
            value = model.get_parameter(name)
            torch.testing.assert_close(together[name][i], value.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("gc_net", [False, True])
def test_the_gradient_by_the_images_can_be_derived_again(gc_net: bool) -> None:
    """As FedMix does; torch's fast kernels of attention have no second derivative."""
    model = build(gc_net=gc_net)
    batch = images(2).requires_grad_()
    (slope,) = torch.autograd.grad(model(batch)[1].square().sum(), batch, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), model.prompts)
    assert bool(second.any())
    whole = vit(5, InputForm(shape=IMAGE), **OWN)
    (slope,) = torch.autograd.grad(whole(batch)[1].square().sum(), batch, create_graph=True)
    slope.square().sum().backward()


def test_images_are_repeated_and_resized_to_whole_patches() -> None:
    model = build((1, 10, 14)).eval()
    assert (model.encoder.channels, model.encoder.image_size) == (1, 16)
    assert model(images(2, (1, 10, 14)))[0].shape == (2, 16)


def test_weights_of_a_trained_transformer_fill_the_frozen_one(tmp_path: Path) -> None:
    torch.manual_seed(1)
    teacher = vit(7, InputForm(shape=IMAGE), **OWN)
    assert isinstance(teacher, TransformerClassifier)
    assert trained(teacher) == [name for name, _ in teacher.named_parameters()]
    save_file(teacher.state_dict(), tmp_path / "whole.safetensors")
    save_file(teacher.encoder.state_dict(), tmp_path / "encoder.safetensors")
    for file in ("whole", "encoder"):
        model = build(weights=str(tmp_path / f"{file}.safetensors"))
        assert same_bits(model.encoder.state_dict(), teacher.encoder.state_dict())
    grey = build((1, 28, 28), weights=str(tmp_path / "encoder.safetensors"))
    assert (grey.encoder.channels, grey.encoder.image_size) == (3, 16)
    assert grey(images(2, (1, 28, 28)))[1].shape == (2, 5)
    with raises(UsageError, "pretrained-unfit") as caught:
        build(weights=str(tmp_path / "encoder.safetensors"), depth=3)
    assert "12 missing: layers.2" in str(caught.value)
    with raises(UsageError, "pretrained-unfit") as caught:
        build(weights=str(tmp_path / "encoder.safetensors"), width=8)
    assert "class_token is (1, 1, 16)" in str(caught.value)
    with raises(UsageError, "kind-mismatch", got=4, wanted=3):
        build((4, 16, 16), weights=str(tmp_path / "encoder.safetensors"))


def test_the_weights_that_ship_are_the_default_small_and_described() -> None:
    file = SHIPPED["cifar10"]
    assert file.stat().st_size < 6_000_000
    assert "test accuracy" in file.with_suffix(".md").read_text()
    model = prompted_vit(5, InputForm(shape=(1, 28, 28)))
    assert (model.encoder.channels, model.encoder.image_size, model.encoder.width) == (3, 32, 192)
    assert model(images(2, (1, 28, 28)))[1].shape == (2, 5)
    whole = vit(10, InputForm(shape=(3, 32, 32)), weights="cifar10")
    assert same_bits(whole.encoder.state_dict(), model.encoder.state_dict())


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        ({"num_prompts": 0}, "out-of-range", {"setting": "num_prompts", "got": 0}),
        ({"prompt_rate": 0.0}, "out-of-range", {"setting": "prompt_rate", "got": 0.0}),
        ({"dropout": 1.0}, "out-of-range", {"setting": "dropout", "got": 1.0}),
        ({"heads": 3}, "out-of-range", {"setting": "width", "got": 16, "heads": 3}),
        ({"backbone": "google/vit"}, "settings-conflict", {"got": "google/vit"}),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], code: str, fields: dict[str, Any]) -> None:
    with raises(UsageError, code, **fields):
        build(**options)


def test_only_images_are_read() -> None:
    with raises(UsageError, "kind-mismatch", model="prompted_vit"):
        build((6,))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny backbones as ``save_pretrained`` writes them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    resnet = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    backbones = {
        "vit": transformers.ViTModel(transformers.ViTConfig(**HUB_VIT)),
        "dinov2": transformers.Dinov2Model(transformers.Dinov2Config(**HUB_VIT)),
        "clip": transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**HUB_VIT)),
        "resnet": transformers.ResNetModel(resnet),
        "without-class-token": transformers.IJepaModel(transformers.IJepaConfig(**HUB_VIT)),
        "of-fixed-length": transformers.BeitModel(transformers.BeitConfig(**HUB_VIT, use_relative_position_bias=True)),
    }
    root = tmp_path_factory.mktemp("backbones")
    for name, backbone in backbones.items():
        backbone.save_pretrained(root / name)
    return {name: root / name for name in backbones}


@pytest.mark.parametrize("gc_net", [False, True])
@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_a_hub_transformer_takes_prompts(folders: dict[str, Path], name: str, gc_net: bool) -> None:
    model = build((3, 12, 12), backbone=f"hf:{folders[name]}", gc_net=gc_net)
    assert set(trained(model)) - {"prompts", "head.weight", "head.bias"} == (
        {f"gc_net.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")} if gc_net else set()
    )
    batch = images(3, (3, 12, 12))
    features, logits = model(batch)
    assert (features.shape, logits.shape) == ((3, 8), (3, 5))
    alone = torch.cat([model(image[None])[0] for image in batch])
    torch.testing.assert_close(features, alone, rtol=1e-4, atol=1e-5)
    logits.square().sum().backward()
    assert model.prompts.grad is not None
    assert bool(model.prompts.grad.any())


@pytest.mark.parametrize("name", ["clip", "resnet", "without-class-token", "of-fixed-length"])
def test_a_hub_model_of_another_form_is_refused(folders: dict[str, Path], name: str) -> None:
    with raises(UsageError, "pretrained-unfit", got=str(folders[name])):
        build(backbone=f"hf:{folders[name]}")


def test_a_hub_transformer_refuses_weights_and_other_channels(folders: dict[str, Path]) -> None:
    with raises(UsageError, "settings-conflict", weights="untrained"):
        prompted_vit(5, InputForm(shape=IMAGE), backbone=f"hf:{folders['vit']}", weights="untrained")
    with raises(UsageError, "kind-mismatch", got=4, wanted=3):
        build((4, 16, 16), backbone=f"hf:{folders['vit']}")


def test_features_are_those_of_the_class_token_with_prompts_behind_it() -> None:
    model = build().eval()
    batch = images(3)
    tokens = model.encoder.embed(batch)
    prompts = model.prompt_tokens(batch).expand(3, -1, -1)
    expected = model.encoder.encode(torch.cat([tokens, prompts], dim=1))
    torch.testing.assert_close(model(batch)[0], expected)

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedatlas.algorithms import ConditionedNorms, KeepHead, KeepNorms
from fedatlas.errors import UsageError
from fedatlas.models import build_model
from fedatlas.models.classifier import Classifier
from fedatlas.models.conditioned import ConditionedClassifier, NormGenerators, bake
from fedatlas.models.norms import ScaleAndShift
from raising import raises

IMAGES = (3, 16, 16)


class OneNorm(Classifier):
    """A norm of two channels, the mean over the map, and a head."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm or nn.GroupNorm(1, 2)
        self.head = nn.Linear(2, 2)

    def extract(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.norm(inputs)).mean((2, 3))


def conditioned(model: nn.Module, **options: object) -> ConditionedClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = ConditionedNorms(**options).extend(model)  # type: ignore[arg-type]
        assert isinstance(made, ConditionedClassifier)
        nn.init.normal_(made.embedding.vector)
    return made


def resnet(**options: object) -> Classifier:
    return build_model("resnet18", num_classes=10, input_shape=(3, 32, 32), norm="instance", head_norm=True, **options)


def count(parameters: object) -> int:
    return sum(parameter.numel() for parameter in parameters)  # type: ignore[attr-defined]


def test_a_layer_worked_out_by_hand() -> None:
    """Embedding (1, 2), hidden width 1. The scale's perceptron: hidden relu(3 * 1 + 1 * 2 - 1) = 4, out (0.5, -0.25) 4
    + (0, 1) = (2, 0), so gamma = 1 + (2, 0) = (3, 1). The shift's: hidden relu(-1 * 1 + 0 * 2 + 0.5) = 0, so beta is
    its bias, (0.1, 0.2). One group of the map [[1, 3]] in both channels has mean 2 and variance 1, so the norm gives
    (-1, 1) in each; scaled and shifted: (-2.9, 3.1) and (-0.8, 1.2). After ReLU the means are 1.55 and 0.6."""
    model = conditioned(OneNorm(nn.GroupNorm(1, 2, eps=0.0)), embedding=2, hidden=1)
    made = model.generators
    with torch.no_grad():
        model.embedding.vector.copy_(torch.tensor([1.0, 2.0]))
        made.hidden_weight.copy_(torch.tensor([[3.0, 1.0], [-1.0, 0.0]]))
        made.hidden_bias.copy_(torch.tensor([-1.0, 0.5]))
        made.weights[0].copy_(torch.tensor([[[0.5], [-0.25]], [[7.0], [7.0]]]))
        made.biases[0].copy_(torch.tensor([[[0.0, 1.0]], [[0.1, 0.2]]]))
    ((scale, shift),) = model.affine()
    torch.testing.assert_close(scale, torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(shift, torch.tensor([0.1, 0.2]))
    features, logits = model(torch.tensor([[[[1.0, 3.0]], [[1.0, 3.0]]]]))
    torch.testing.assert_close(features, torch.tensor([[1.55, 0.6]]))
    torch.testing.assert_close(logits, model.model.head(features))


@pytest.mark.parametrize(("width", "plain", "shared"), [(64, 11_174_986, 11_943_626), (62, 10_487_992, 11_235_384)])
def test_the_papers_counts_of_parameters(width: int, plain: int, shared: int) -> None:
    """The embedding's 32 numbers are not among the shared ones: of those the paper counts 11,943,626."""
    model = resnet(width=width)
    assert count(model.parameters()) == plain
    made = conditioned(model)
    assert count(made.parameters()) == shared + 32
    assert count(made.embedding.parameters()) == 32


def test_the_papers_counts_of_personal_parameters() -> None:
    model = resnet()
    parameters = dict(model.named_parameters())
    assert count(parameters[name] for name in KeepNorms().personal_parameters(model)) == 10_624
    assert count(parameters[name] for name in KeepHead().personal_parameters(model)) == 5_130


def test_all_perceptrons_together_are_each_perceptron_alone() -> None:
    """Layers of widths 4, 6 and again 4: their scales and shifts are those of separate two-layer networks."""
    layers = nn.Sequential(nn.GroupNorm(2, 4), nn.BatchNorm2d(6), nn.LayerNorm(4))
    layers.add_module("head", nn.Linear(1, 1))
    model = conditioned(layers, embedding=3, hidden=5)
    made, vector = model.generators, model.embedding.vector
    # Perceptrons lie by width, scales before shifts: (4: layers 0 and 2), (6: layer 1).
    places = {0: (0, 0, 2), 1: (1, 0, 1), 2: (0, 1, 3)}
    for layer, (width, scale_at, shift_at) in places.items():
        for at, got, plus in ((scale_at, model.affine()[layer][0], 1), (shift_at, model.affine()[layer][1], 0)):
            row = (at + (0, 4)[width]) * 5
            hidden = torch.relu(made.hidden_weight[row : row + 5] @ vector + made.hidden_bias[row : row + 5])
            expected = plus + made.weights[width][at] @ hidden + made.biases[width][at, 0]
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("norm", ["instance", "group", "layer", "batch"])
def test_each_norm_keeps_its_statistics(norm: str) -> None:
    """With scales of 1 and shifts of 0 the conditioned network is the plain one, in training and in test."""
    plain = build_model("resnet18", num_classes=3, input_shape=IMAGES, width=4, norm=norm, head_norm=True)
    model = conditioned(copy.deepcopy(plain), embedding=4, hidden=3)
    for parameter in (*model.generators.weights, *model.generators.biases):
        nn.init.zeros_(parameter)
    images = torch.randn(5, *IMAGES)
    for training in (True, False):
        torch.testing.assert_close(model.train(training)(images)[1], plain.train(training)(images)[1])
    assert {name.removeprefix("model.") for name, _ in model.named_buffers()} == {k for k, _ in plain.named_buffers()}


def test_scales_start_around_one_and_shifts_around_zero() -> None:
    scales, shifts = (torch.cat(kind) for kind in zip(*conditioned(resnet(width=8)).affine(), strict=True))
    assert 0.97 < scales.mean() < 1.03
    assert abs(shifts.mean()) < 0.03
    assert 0 < scales.std() < 0.3


def test_it_works_as_a_function_of_its_parameters_and_under_vmap() -> None:
    model = conditioned(build_model("resnet18", num_classes=3, input_shape=IMAGES, width=4, norm="group"), embedding=4)
    images = torch.randn(2, *IMAGES)
    vectors = torch.randn(3, 4)
    rest = {k: p.detach() for k, p in model.named_parameters() if k != "embedding.vector"}

    def logits(vector: Tensor) -> Tensor:
        found: Tensor = functional_call(model, {**rest, "embedding.vector": vector}, (images,))[1]
        return found

    one_by_one = torch.stack([logits(vector) for vector in vectors])
    assert not torch.allclose(one_by_one[0], one_by_one[1])
    torch.testing.assert_close(vmap(logits)(vectors), one_by_one)
    with torch.no_grad():
        model.embedding.vector.copy_(vectors[1])
    torch.testing.assert_close(model(images)[1], one_by_one[1])


def test_it_can_be_copied_after_a_step() -> None:
    model = conditioned(OneNorm(), embedding=2)
    model(torch.randn(2, 2, 3, 3))[1].sum().backward()
    assert model.embedding.vector.grad is not None
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.embedding.vector += 1
    images = torch.randn(2, 2, 3, 3)
    assert not torch.equal(twin(images)[1], model(images)[1])


@pytest.mark.parametrize("head_norm", ["layer", "batch", "film"])
def test_a_baked_model_is_plain_and_says_the_same(head_norm: str) -> None:
    model = conditioned(resnet(width=4), head_norm=head_norm).eval()
    images = torch.randn(3, 3, 32, 32)
    baked = bake(model).eval()
    assert not any(isinstance(module, ConditionedClassifier) for module in baked.modules())
    assert torch.equal(baked(images)[1], model(images)[1])
    assert set(dict(baked.named_parameters())) == set(dict(resnet(width=4).named_parameters()))
    wrapped = bake(nn.Sequential(model)).eval()
    assert not any(isinstance(module, ConditionedClassifier) for module in wrapped.modules())
    assert torch.equal(wrapped(images)[1], model(images)[1])


def test_the_norm_before_the_head_normalises_over_the_batch_or_not_at_all() -> None:
    batch = conditioned(resnet(width=4), head_norm="batch").model.head_norm
    film = conditioned(resnet(width=4), head_norm="film").model.head_norm
    assert isinstance(batch, nn.BatchNorm1d)
    assert isinstance(film, ScaleAndShift)
    film.weight, film.bias = torch.tensor([2.0, 3.0]), torch.tensor([1.0, 0.0])
    torch.testing.assert_close(film(torch.tensor([[5.0, 7.0]])), torch.tensor([[11.0, 21.0]]))


class PoolsTooEarly(OneNorm):
    def extract(self, inputs: Tensor) -> Tensor:
        return self.norm(inputs).mean((2, 3))


def test_an_instance_norm_right_before_pooling_is_refused() -> None:
    """Each channel's mean over the image is its shift, for every image: the guard sees that the features are equal."""
    model = conditioned(PoolsTooEarly(nn.InstanceNorm2d(2)), embedding=2)
    images = torch.randn(4, 2, 5, 5)
    alone = torch.cat([model(image[None])[0] for image in images])
    torch.testing.assert_close(alone, model.affine()[0][1].expand(4, 2), atol=1e-6, rtol=1e-6)
    for mode in (True, False):
        with raises(UsageError, "model-unfit", reason="same-features"):
            model.train(mode)(images)


def test_equal_images_are_no_reason_to_refuse() -> None:
    model = conditioned(PoolsTooEarly(nn.InstanceNorm2d(2)), embedding=2)
    model(torch.randn(1, 2, 5, 5).expand(4, -1, -1, -1))


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(2), nn.GroupNorm(2, 2)])
def test_a_norm_of_single_numbers_is_refused(norm: nn.Module) -> None:
    model = conditioned(OneNorm(norm), embedding=2)
    with raises(UsageError, "model-unfit", reason="one-pixel"):
        model(torch.randn(4, 2, 1, 1))
    model(torch.randn(4, 2, 2, 1))


@pytest.mark.parametrize(
    ("extension", "model", "fields"),
    [
        (ConditionedNorms(), nn.Linear(2, 2), {"got": "Linear", "reason": "no-norm"}),
        (ConditionedNorms(), nn.Sequential(nn.RMSNorm(3)), {"got": "0", "reason": "no-shift"}),
        (ConditionedNorms(head_norm="film"), OneNorm(), {"got": "film", "reason": "no-norm"}),
    ],
)
def test_what_cannot_be_conditioned_is_refused(
    extension: ConditionedNorms, model: nn.Module, fields: dict[str, str]
) -> None:
    with raises(UsageError, "model-unfit", **fields):
        extension.extend(model)


def test_a_wrong_setting_of_the_norms_is_refused() -> None:
    with raises(UsageError, "out-of-range", got=0):
        ConditionedNorms(embedding=0)
    with raises(UsageError, "wrong-value", got="instance"):
        ConditionedNorms(head_norm="instance")
    with raises(UsageError, "unknown-name", kind="head_norm", got="lay"):
        ConditionedNorms(head_norm="lay")


def test_scales_and_shifts_are_made_in_full_precision_under_autocast() -> None:
    """A scale of 1.001 is 1 in bfloat16."""
    model = build_model("cnn", num_classes=3, input_shape=(3, 8, 8), width=4, norm="instance", seed=0)
    conditioned = ConditionedClassifier(model, embedding=4, hidden=8)
    plain = torch.cat([value for pair in conditioned.affine() for value in pair])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(plain, torch.cat([value for pair in conditioned.affine() for value in pair]))
        _, logits = conditioned(torch.rand(2, 3, 8, 8))
    gradients = torch.autograd.grad(logits.float().logsumexp(1).sum(), list(conditioned.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_perceptrons_start_as_linear_layers_do() -> None:
    """Uniform in +-1/sqrt(inputs): of 16 numbers of an embedding +-1/4, of 64 hidden ones +-1/8."""
    generators = NormGenerators(16, 64, [8, 8])
    assert float(generators.hidden_weight.detach().abs().max()) == pytest.approx(1 / 4, rel=0.02)
    assert float(generators.weights[0].detach().abs().max()) == pytest.approx(1 / 8, rel=0.02)

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedatlas.algorithms import fedavg
from fedatlas.algorithms.harmofl import AmplitudeLayer, AmplitudeNorm, AmplitudeNormalised, harmofl
from fedatlas.client import LocalWork
from fedatlas.data import Client, Dataset, Federation
from fedatlas.errors import UsageError
from fedatlas.models import head_parameters
from fedatlas.parts import SGD, Equal, words
from raising import raises
from tiny import Norms, blob_federation, play, same_bits


class Pixels(nn.Module):
    """One convolution to four maps, batch normalisation, their means, and a head."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv = nn.Conv2d(channels, 4, 2)
            self.norm = nn.BatchNorm2d(4)
            self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return features, self.head(features)


def image_federation(*clients: Tensor, mean: float | None = 0.5, std: float = 0.25) -> Federation:
    """Clients given by their images, with labels 0, 1, 0, ..."""
    images = torch.cat(clients).to(torch.uint8)
    members, start = [], 0
    for i, own in enumerate(clients):
        indices = torch.arange(start, start + len(own))
        members.append(Client(name=f"client-{i}", train=indices, test=indices))
        start += len(own)
    labels, repeat = torch.arange(len(images)) % 2, 0 if mean is None else images.shape[1]
    data = Dataset(
        name="shades",
        inputs=images,
        labels=labels,
        classes=("even", "odd"),
        mean=(mean or 0.0,) * repeat,
        std=(std,) * repeat,
    )
    return Federation(data=data, clients=tuple(members))


def shades(*values: int, side: int = 2) -> Tensor:
    return torch.stack([torch.full((1, side, side), value) for value in values])


def noise(count: int, channels: int = 1, side: int = 5, seed: int = 0) -> Tensor:
    return torch.randint(256, (count, channels, side, side), generator=torch.Generator().manual_seed(seed))


def test_dark_and_bright_images_get_the_same_brightness() -> None:
    """2x2 images, mean 0.5, std 0.25. Pixels of 51 are 0.2: 0.8 standard deviations above black, amplitude 4 * 0.8 =
    3.2 at frequency 0; pixels of 204 are 0.8: 4 * 3.2 = 12.8. The mean of the clients, 8, is 2 standard deviations
    above black in each pixel, and black is at -2: both images become 0. (Taken from the normalised images, -1.2 and
    1.2, the amplitudes would both be 4.8 and the images would stay apart.)"""
    federation = image_federation(shades(51, 51, 51), shades(204, 204))
    algorithm = harmofl().with_optimizer(SGD(lr=0.1))
    model = algorithm.extend(Pixels())
    state, _, simulator = play(algorithm, model, federation, work=LocalWork(steps=1))
    assert state.buffers["amplitude_norm.amplitude"].item() == pytest.approx(8.0)
    assert state.buffers["amplitude_norm.black"].item() == pytest.approx(-2.0)
    simulator.runner.bench.load(state.shared, state.buffers, {})
    layer = simulator.runner.bench.model.get_submodule("amplitude_norm")
    for client in (0, 1):
        data = simulator.runner.data(client)
        normalised = layer(data.batch(data.client.train, None).inputs)
        torch.testing.assert_close(normalised, torch.zeros_like(normalised), atol=1e-6, rtol=0)


def test_clients_count_the_same_and_held_out_ones_say_nothing() -> None:
    """Without statistics the amplitudes of shades 51, 204 and 255 are 0.8, 3.2 and 4; the last client is held out, so
    the mean is 2, though the first client has three images and the second one."""
    federation = image_federation(shades(51, 51, 51), shades(204), shades(255), mean=None).hold_out([2])
    algorithm = harmofl()
    _, _, simulator = play(algorithm, algorithm.extend(Pixels()), federation, work=LocalWork(steps=1))
    _, buffers = simulator.runner.bench.shared()
    filled = algorithm.server[0].initial_buffers(buffers, simulator.roster)
    assert filled["amplitude_norm.amplitude"].item() == pytest.approx(2.0)
    assert simulator.roster[2].introduction == {}


def test_the_default_window_shifts_the_brightness_and_nothing_else() -> None:
    layer = AmplitudeLayer(2, 0)
    layer.amplitude.copy_(torch.tensor([[[30.0]], [[7.0]]]))
    layer.black.copy_(torch.tensor([-1.0, -4.0]))
    images = torch.rand(3, 2, 4, 6, generator=torch.Generator().manual_seed(0))
    normalised = layer(images)
    torch.testing.assert_close(normalised.mean((2, 3)), torch.tensor([[30 / 24 - 1, 7 / 24 - 4]]).expand(3, 2))
    torch.testing.assert_close(
        normalised - normalised.mean((2, 3), keepdim=True), images - images.mean((2, 3), keepdim=True)
    )


def test_a_window_replaces_the_amplitudes_in_it_and_keeps_all_phases() -> None:
    algorithm = harmofl(window=1)
    federation = image_federation(noise(4), noise(6, seed=1), mean=None)
    _, _, simulator = play(algorithm, algorithm.extend(Pixels()), federation, work=LocalWork(steps=1))
    shared, buffers = simulator.runner.bench.shared()
    simulator.runner.bench.load(shared, algorithm.server[0].initial_buffers(buffers, simulator.roster), {})
    layer = simulator.runner.bench.model.get_submodule("amplitude_norm")
    images = simulator.runner.data(0).batch(torch.arange(4), None).inputs
    before, after = torch.fft.fft2(images), torch.fft.fft2(layer(images))
    inside = torch.zeros(5, 5, dtype=torch.bool)
    inside[torch.tensor([-1, 0, 1])[:, None], torch.tensor([-1, 0, 1])] = True
    torch.testing.assert_close(after[..., ~inside], before[..., ~inside], atol=1e-5, rtol=1e-5)
    phases = torch.polar(torch.ones(4, 1, 9), before[..., inside].angle())
    amplitudes = after[..., inside] / phases
    torch.testing.assert_close(amplitudes.imag, torch.zeros(4, 1, 9), atol=1e-5, rtol=0)
    torch.testing.assert_close(amplitudes.real, amplitudes.real[:1].expand(4, 1, 9), atol=1e-5, rtol=1e-5)
    means = [torch.fft.fft2(c.float() / 255).abs().mean(0) for c in federation.data.inputs.split([4, 6])]
    torch.testing.assert_close(amplitudes.real[0], ((means[0] + means[1]) / 2)[..., inside], atol=1e-5, rtol=1e-5)


def test_unknown_amplitudes_leave_the_images() -> None:
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(AmplitudeLayer(1, 1)(images), images)


@pytest.mark.parametrize("buffers", ["average", "keep"])
def test_the_amplitudes_are_shared_and_frozen_whatever_becomes_of_running_statistics(buffers: str) -> None:
    federation = image_federation(noise(5), noise(7, seed=1), noise(9, seed=2))
    algorithm = harmofl().with_buffers(buffers)  # type: ignore[arg-type]
    states = [
        play(algorithm, algorithm.extend(Pixels()), federation, rounds=rounds, cohort=2, work=LocalWork(steps=2))[0]
        for rounds in (1, 4)
    ]
    first, last = (state.buffers["amplitude_norm.amplitude"] for state in states)
    assert float(first) > 0
    torch.testing.assert_close(last, first)
    assert ("model.norm.running_mean" in states[0].buffers) == (buffers == "average")


def test_without_perturbation_and_amplitudes_it_is_the_uniform_mean() -> None:
    federation = image_federation(noise(5), noise(7, seed=1))
    plain = replace(fedavg(), weighting=(Equal(),))
    bare = replace(harmofl(alpha=0.0), extensions=(), server=())
    expected, _, _ = play(plain, Pixels(), federation, rounds=2)
    state, records, _ = play(bare, Pixels(), federation, rounds=2)
    assert same_bits(expected.shared, state.shared)
    assert same_bits(expected.buffers, state.buffers)
    assert records[0].weights == {0: 0.5, 1: 0.5}


def test_alpha_perturbs_the_weights() -> None:
    federation = image_federation(noise(5), noise(7, seed=1))
    ends = []
    for alpha in (0.0, 0.5):
        algorithm = harmofl(alpha=alpha)
        ends.append(play(algorithm, algorithm.extend(Pixels()), federation)[0])
    assert not same_bits(ends[0].shared, ends[1].shared)


def test_the_extension_describes_itself_and_keeps_the_head_in_sight() -> None:
    algorithm = harmofl(window=2)
    model = algorithm.extend(Pixels(3))
    assert isinstance(model, AmplitudeNormalised)
    assert model.amplitude_norm.amplitude.shape == (3, 5, 5)
    assert head_parameters(model) == ["model.head.weight", "model.head.bias"]
    assert algorithm.describe()["extensions"] == [{"part": "AmplitudeNorm", "window": 2, "channels": None}]
    assert words(algorithm.disclosures()) == [
        "mean amplitude of the client's training images at the lowest frequencies",
        "black, as the client's images are scaled",
    ]


def test_what_is_not_an_image_is_refused() -> None:
    algorithm = harmofl(channels=1)
    with raises(UsageError, "kind-mismatch", got="features"):
        play(algorithm, algorithm.extend(Norms()), blob_federation(num_clients=2))
    with raises(UsageError, "model-unfit", got="Norms"):
        harmofl().extend(Norms())


def test_a_model_that_does_not_fit_the_images_is_refused() -> None:
    federation = image_federation(noise(4, channels=3), noise(4, channels=3))
    algorithm = harmofl(channels=1)
    with raises(UsageError, "wrong-shape", got=3, wanted=1):
        play(algorithm, algorithm.extend(Pixels(3)), federation)
    with raises(UsageError, "model-unfit"):
        play(algorithm, Pixels(3), federation)
    with raises(UsageError, "out-of-range", setting="window", got=3):
        play(harmofl(window=3), Pixels(3), federation)
    with raises(UsageError, "wrong-shape"):
        AmplitudeLayer(2, 0)(torch.zeros(1, 3, 4, 4))


def test_wrong_settings_are_refused() -> None:
    with raises(UsageError, "out-of-range", setting="AmplitudeNorm(window)", got=-1):
        harmofl(window=-1)
    with raises(UsageError, "out-of-range", setting="AmplitudeNorm(channels)", got=0):
        AmplitudeNorm(channels=0)
    with raises(UsageError, "out-of-range", setting="SharpnessAware(rho)", got=-0.5):
        harmofl(alpha=-0.5)

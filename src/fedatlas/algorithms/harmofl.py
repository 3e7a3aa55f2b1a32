"""HarmoFL. Jiang, Wang, Dou, HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous
Medical Images, AAAI 2022.

input           2-D Fourier transform of each channel; keep the phase, replace the low-frequency amplitudes by their
                mean over the federation; transform back
before round 1  each client sends its mean amplitudes; the server averages them; they are frozen from then on
local step      g1 = gradient at w;  w' = w + alpha g1 / ||g1||;  base optimizer's step at w with the gradient at w'
server          the mean of the clients' models, each counting the same
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedatlas.algorithms.fedsam import SharpnessAware
from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.context import ClientData
from fedatlas.parts.disclosure import Disclosure
from fedatlas.parts.extension import Extension
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.split import Split
from fedatlas.parts.types import Roster, Tensors
from fedatlas.parts.weighting import Equal
from fedatlas.seeds import generator

LAYER, AMPLITUDE, BLACK = "amplitude_norm", "amplitude", "black"


class AmplitudeLayer(nn.Module):
    """Gives all images the same amplitudes at the lowest frequencies; one that is not known yet (0) stays their own."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__()
        self.amplitude: Tensor
        self.black: Tensor
        self.window = window
        self.register_buffer(AMPLITUDE, torch.zeros(channels, 2 * window + 1, 2 * window + 1))
        self.register_buffer(BLACK, torch.zeros(channels))

    def forward(self, images: Tensor) -> Tensor:
        """Return the images with the federation's amplitudes and their own phases."""
        if images.ndim != 4 or images.shape[1] != len(self.black):
            raise UsageError(
                f"harmofl: expected images of {len(self.black)} channels, got inputs of shape {tuple(images.shape)}. "
                "Give the recipe the images' number of channels, or choose another algorithm.",
                code="wrong-shape",
                got=tuple(images.shape),
            )
        black = self.black[:, None, None]
        # From black up, as the authors' images are: there the phase at frequency 0 is 0. An image normalised to mean 0
        # has either sign there, and dark and bright images would be driven apart, not together.
        spectrum = torch.fft.fft2(images - black)
        rows, columns = _window(self.window, images.device)
        own = spectrum[..., rows, columns]
        amplitude = torch.where(self.amplitude > 0, self.amplitude, own.abs())
        spectrum[..., rows, columns] = torch.polar(amplitude, own.angle())
        normalised: Tensor = torch.fft.ifft2(spectrum).real + black
        return normalised


class AmplitudeNormalised(nn.Module):
    """A model behind an amplitude normalisation of its inputs."""

    def __init__(self, model: nn.Module, channels: int, window: int) -> None:
        super().__init__()
        self.amplitude_norm = AmplitudeLayer(channels, window)
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's features and logits for the normalised images."""
        features, logits = self.model(self.amplitude_norm(images))
        return features, logits


@dataclass(frozen=True, kw_only=True)
class AmplitudeNorm(Extension):
    """Builds the amplitude normalisation in front of a model."""

    window: int = 0
    """How many frequencies beside 0, each way, are replaced; 0 replaces the mean brightness only."""
    channels: int | None = None
    """Channels of the images; None takes them from the model's first convolution."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 0:
            raise UsageError(
                f"AmplitudeNorm(window) must not be negative, got {self.window}.",
                code="out-of-range",
                setting="AmplitudeNorm(window)",
                got=self.window,
            )
        if self.channels is not None and self.channels < 1:
            raise UsageError(
                f"AmplitudeNorm(channels) must be at least 1, got {self.channels}.",
                code="out-of-range",
                setting="AmplitudeNorm(channels)",
                got=self.channels,
            )

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the model behind the normalisation."""
        channels = self.channels or next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), 0)
        if not channels:
            raise UsageError(
                f"harmofl reads images, and {type(model).__name__} has no convolution that shows how many channels "
                "they have. Give channels=, or choose another algorithm if the data are not images.",
                code="model-unfit",
                got=type(model).__name__,
            )
        return AmplitudeNormalised(model, channels, self.window)


@dataclass(frozen=True, kw_only=True)
class MeanAmplitude(ServerRule):
    """Averages the clients' amplitudes before the first round and puts them into the shared model."""

    name: ClassVar[str] = LAYER
    discloses: ClassVar[tuple[Disclosure, ...]] = (
        Disclosure(
            AMPLITUDE,
            "mean amplitude of the client's training images at the lowest frequencies",
            "introduction",
            ("channels", "side", "side"),
            sender="training",
        ),
        Disclosure(BLACK, "black, as the client's images are scaled", "introduction", ("channels",), sender="training"),
    )
    window: int = 0
    """The window of the amplitude normalisation."""

    @property
    def side(self) -> int:
        """How many frequencies there are in a row of the window."""
        return 2 * self.window + 1

    def introduce(self, data: ClientData) -> Tensors:
        """Return the mean amplitudes of a training client's images; nothing else of the spectrum is ever used."""
        if data.federation.data.kind != "image":
            raise UsageError(
                f"harmofl normalises images; {data.federation.name} holds {data.federation.data.kind}. "
                "Choose another algorithm or another data set.",
                code="kind-mismatch",
                got=data.federation.data.kind,
            )
        least = min(data.inputs.shape[-2:])
        if self.side > least:
            raise UsageError(
                f"harmofl: window must be at most {(least - 1) // 2} for these images, got {self.window}.",
                code="out-of-range",
                setting="window",
                got=self.window,
            )
        if data.client.held_out:
            return {}
        device = data.inputs.device
        statistics = zip(data.federation.data.mean, data.federation.data.std, strict=True)
        shades = [-mean / std for mean, std in statistics] or [0.0]
        black = torch.tensor(shades, device=device).expand(data.inputs.shape[1])
        rng = generator(0, LAYER, data.name, device=device)
        total = torch.zeros(len(black), self.side, self.side, dtype=torch.float64, device=device)
        for indices in data.client.train.split(256):
            spectrum = torch.fft.fft2(data.batch(indices, rng).inputs - black[:, None, None])
            total += spectrum[..., *_window(self.window, device)].abs().sum(0)
        return {AMPLITUDE: (total / data.num_examples).float(), BLACK: black.clone()}

    def initial_buffers(self, buffers: Tensors, roster: Roster) -> Tensors:
        """Put the mean over the training clients into the model; every round's average leaves it as it is."""
        introductions = [client.introduction[self.name] for client in roster if not client.held_out]
        filled = {
            kind: torch.stack([each[kind].double() for each in introductions]).mean(0).float()
            for kind in (AMPLITUDE, BLACK)
        }
        places = {name: name.split(".")[-1] for name in buffers if name.split(".")[-2:-1] == [LAYER]}
        if not places:
            raise UsageError(
                "harmofl: the model has no amplitude normalisation; wrap it by algorithm.extend(model).",
                code="model-unfit",
            )
        for name, kind in places.items():
            if buffers[name].shape != filled[kind].shape:
                raise UsageError(
                    f"harmofl: the images have {len(filled[kind])} channels, the model was built for "
                    f"{len(buffers[name])}. Give the recipe channels={len(filled[kind])}.",
                    code="wrong-shape",
                    got=len(filled[kind]),
                    wanted=len(buffers[name]),
                )
        return buffers | {name: filled[kind].to(buffers[name].device) for name, kind in places.items()}


@dataclass(frozen=True, kw_only=True)
class ShareAmplitude(Split):
    """Shares everything; the amplitudes even where each client keeps its own running statistics."""

    name: ClassVar[str] = "share_amplitude"

    def personal_buffers(self, model: nn.Module) -> set[str]:
        """Return the buffers that the policy keeps on clients, without the amplitudes."""
        layers = [path for path, module in model.named_modules() if isinstance(module, AmplitudeLayer)]
        return super().personal_buffers(model) - {f"{path}.{kind}" for path in layers for kind in (AMPLITUDE, BLACK)}


def _window(window: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the indices of the frequencies -window .. window, in rows and in columns."""
    frequencies = torch.arange(-window, window + 1, device=device)
    return frequencies[:, None], frequencies[None, :]


@recipe(changes="model, optimizer", paper="Jiang et al. 2022")
def harmofl(alpha: float = 0.05, window: int = 0, channels: int | None = None) -> Algorithm:
    """All images get the federation's mean brightness; clients seek flat minima, as FedSAM's do, within ``alpha``."""
    return Algorithm(
        name="harmofl",
        weighting=(Equal(),),
        server=(MeanAmplitude(window=window),),
        split=ShareAmplitude(),
        optimizer=SharpnessAware(rho=alpha),
        extensions=(AmplitudeNorm(window=window, channels=channels),),
    )

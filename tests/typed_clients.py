"""Clients of two types, and models that tell what type an example is of."""

import torch
from torch import Tensor, nn

from fedatlas.data import Client, Dataset, Federation
from fedatlas.models import InputForm, PromptedClassifier, prompted_vit

KINDS = (0, 0, 1, 0, 1)


class Typed(nn.Module):
    """One parameter w: h = z = (x, w x); a head of zeros, so that cross-entropy is log 2 and does not move w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.head.weight)

    def type_prompts(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.w * x], 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.type_prompts(x)
        return features, self.head(features)


def image_federation() -> Federation:
    """Five clients of two types: dark images and bright ones; the class is where a bar lies."""
    rng = torch.Generator().manual_seed(0)
    inputs, labels, clients, start = [], [], [], 0
    for i, kind in enumerate(KINDS):
        size = 10 + 4 * i
        label = torch.randint(2, (size,), generator=rng)
        images = torch.full((size, 3, 8, 8), 50.0 + 120 * kind)
        images[label == 0, :, :3] += 60
        images[label == 1, :, :, 5:] += 60
        inputs.append((images + 10 * torch.randn(images.shape, generator=rng)).clamp(0, 255).to(torch.uint8))
        labels.append(label)
        own = torch.arange(start, start + size)
        clients.append(Client(name=f"client-{i}", train=own, test=own, domain=str(kind)))
        start += size
    data = Dataset(name="bars", inputs=torch.cat(inputs), labels=torch.cat(labels), classes=("top", "right"))
    return Federation(data=data, clients=tuple(clients), partition="by hand")


def tiny_vit(num_classes: int = 2, gc_net: bool = False, dropout: float = 0.0) -> PromptedClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        form = InputForm(shape=(3, 8, 8))
        return prompted_vit(
            num_classes,
            form,
            weights="untrained",
            gc_net=gc_net,
            dropout=dropout,
            patch=4,
            width=32,
            depth=2,
            heads=2,
        )

"""What encoders are shown: each client's training examples as the client sees them, and words for what they mean."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Federation
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import generator


class Shown(NamedTuple):
    """Examples as a client sees them."""

    indices: Tensor
    inputs: Tensor
    """As the data set holds them; images that a client's transform changed are floats near [0, 1]."""


def training_examples(federation: Federation) -> Tensor:
    """Return the examples that some client trains on, held-out clients included, each once and in order."""
    found: Tensor = torch.cat([client.train for client in federation]).unique()
    return found


def shown_batches(federation: Federation, size: int) -> Iterator[Shown]:
    """Yield every client's training examples, changed by the client's transform, the same each time.

    There is one vector per example, so an example that two clients see differently is refused.
    """
    _check_one_view(federation)
    inputs = federation.data.inputs
    plain = [client.train for client in federation if client.transform is None]
    if plain:
        for indices in torch.cat(plain).unique().split(size):
            yield Shown(indices, inputs[indices])
    for client in federation:
        if client.transform is None:
            continue
        rng = generator(0, "embeddings", client.name, device=inputs.device)
        for indices in client.train.split(size):
            yield Shown(indices, client.transform(inputs[indices].float() / 255, rng))


def _check_one_view(federation: Federation) -> None:
    clients = federation.clients
    if all(client.transform is None for client in clients):
        return
    seen_by = torch.full((len(federation.data),), -1)
    for i, client in enumerate(clients):
        before = seen_by[client.train.cpu()]
        for j in before[before >= 0].unique().tolist():
            if clients[j].transform != client.transform:
                raise DataError(
                    f"{federation.name}: clients {clients[j].name} and {client.name} train on the same examples but "
                    "see them through different transforms, and embeddings hold one vector per example. "
                    "Give each client its own examples.",
                    code="partition-unfit",
                    clients=(clients[j].name, client.name),
                )
        seen_by[client.train.cpu()] = i


def pictures(images: Tensor, title: str) -> Tensor:
    """Return images as float colour pictures in [0, 1]; grey ones are repeated."""
    if images.shape[1] not in (1, 3):
        raise UsageError(
            f"{title} reads grey or colour images, got {images.shape[1]} channels. Convert the images.",
            code="kind-mismatch",
            got=images.shape[1],
            what="images",
        )
    scaled = images.float() / 255 if images.dtype == torch.uint8 else images.clamp(0, 1)
    return scaled.expand(-1, 3, -1, -1)


def class_texts(data: Dataset) -> list[str]:
    """Return what a class is called: "a photo of a cat.", "Character e", or the label of a classified text.

    >>> from fedatlas.data import from_arrays
    >>> class_texts(from_arrays(torch.zeros(2, 4, 4), [0, 1], classes=["alarm_clock", "bus"]))
    ['a photo of an alarm clock.', 'a photo of a bus.']
    """
    if predicts_characters(data):
        return [f"Character {name}" for name in data.classes]
    names = [name.replace("_", " ") for name in data.classes]
    if data.kind == "tokens":
        return names
    return [photo_of(name) for name in names]


def photo_of(name: str) -> str:
    """Return CLIP's prompt for a name, with "an" before a vowel."""
    return f"a photo of {'an' if name[:1].lower() in set('aeiou') else 'a'} {name}."


def example_texts(data: Dataset, tokens: Tensor) -> list[str]:
    """Return rows of tokens as text: "The next character of ...", or a classified text itself."""
    if not data.vocabulary:
        raise DataError(
            f"{data.name}: its tokens cannot be read, because it has no vocabulary. Give one.",
            code="vocabulary",
            data=data.name,
        )
    lead = "The next character of " if predicts_characters(data) else ""
    return [lead + "".join(data.vocabulary[token] for token in row) for row in tokens.tolist()]


def predicts_characters(data: Dataset) -> bool:
    """Return whether the labels of a text are its next characters; labels that are all digits are taken for ratings."""
    single = all(len(name) == 1 for name in data.classes)
    return data.kind == "tokens" and single and not all(name.isdigit() for name in data.classes)

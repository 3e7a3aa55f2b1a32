"""The previews of clients in a report: a few images or rows, and a plain vector of the client's data."""

import io
import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from fedatlas.client.data import ResidentData
from fedatlas.data.federation import Federation
from fedatlas.runs.example_rows import client_rows, several_classes
from fedatlas.seeds import generator

PORTRAITS = "portraits.npz"
MOST_CLIENTS = 2000
MOST_PICTURED = 60
"""Clients of whom a report shows examples."""
MOST_COUNTS = 1_000_000
"""Numbers about the labels of test parts that are kept."""
MOST_EXAMPLES = 64
"""Pictures of a client that a report reads."""
LARGEST_SIDE = 48
"""Larger images are made smaller: a report shows them at half of that."""
_EXAMPLES = 200
"""How many of a client's training examples a vector looks at."""


def client_vectors(federation: Federation) -> np.ndarray:
    """Return one vector per client, float32, standardised over clients.

    Images: mean and standard deviation of each cell of an 8x8 grid, per channel, and the share of each class. Tokens:
    the share of each token. Features: mean and standard deviation.
    """
    rows = []
    for i in range(len(federation)):
        data = ResidentData(federation, i)
        own = data.client.train if len(data.client.train) else data.client.test
        rng = generator(0, "portrait", data.name, device=data.labels.device)
        inputs, labels, _ = data.batch(own[:_EXAMPLES], rng)
        shares = federation.data.task.counts(labels.cpu(), federation.num_classes).to(labels.device) / len(labels)
        if federation.data.kind == "tokens":
            tokens = torch.bincount(inputs.flatten(), minlength=len(federation.data.vocabulary))
            row = torch.cat([tokens / tokens.sum(), shares])
        else:
            cells = F.adaptive_avg_pool2d(inputs, 8) if inputs.ndim == 4 else inputs
            row = torch.cat([cells.mean(0).flatten(), cells.std(0, correction=0).flatten(), shares])
        rows.append(row.float().cpu())
    table = torch.stack(rows)
    spread = table.std(0, correction=0)
    table = (table - table.mean(0)) / torch.where(spread > 1e-6, spread, torch.ones_like(spread))
    return np.asarray(table.numpy(), dtype=np.float32)


def pictured(domains: Sequence[str | None]) -> list[int]:
    """Return the clients that are shown, by their domains: the first of each, then the second, and so on."""
    named = dict.fromkeys(domain for domain in domains if domain is not None)
    of_each = [[i for i, domain in enumerate(domains) if domain == one] for one in (*named, None)]
    turns = itertools.zip_longest(*of_each)
    return sorted([i for turn in turns for i in turn if i is not None][:MOST_PICTURED])


def client_examples(
    federation: Federation, clients: Sequence[int], count: int = 8
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return images of some clients as they see them, of as many classes as can be, and their classes.

    uint8 (clients, count, channels, height, width) and int64 (clients, count), -1 where a client has fewer; None for
    data that are not images.
    """
    if federation.data.kind != "image":
        return None
    rows, classes = [], []
    for i in clients:
        data = ResidentData(federation, i)
        own = data.client.train if len(data.client.train) else data.client.test
        labels = data.labels[own].cpu()
        if labels.ndim > 1 or labels.is_floating_point():  # no one class for each example
            labels = torch.full((len(own),), -1)
        chosen = several_classes(labels, count)
        images = data.inputs[own[chosen.to(own.device)]].float() / 255
        if data.client.transform is not None:
            rng = generator(0, "portrait", data.name, device=data.labels.device)
            images = data.client.transform(images, rng)
        side = max(images.shape[2:])
        if side > LARGEST_SIDE:
            height, width = (max(1, round(n * LARGEST_SIDE / side)) for n in images.shape[2:])
            images = F.adaptive_avg_pool2d(images, (height, width))
        shown = (images.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
        rows.append(F.pad(shown, (0, 0, 0, 0, 0, 0, 0, count - len(shown)), value=255))
        classes.append(F.pad(labels[chosen], (0, count - len(shown)), value=-1))
    return np.asarray(torch.stack(rows).numpy()), np.asarray(torch.stack(classes).numpy())


def portraits(federation: Federation) -> bytes | None:
    """Return the portraits as the content of a file; None if there are too many clients for a report."""
    if len(federation) > MOST_CLIENTS:
        return None
    arrays = {"vectors": client_vectors(federation)}
    if federation.data.task.has_classes and len(federation) * federation.num_classes <= MOST_COUNTS:
        tested = [federation.label_counts(i, "test") for i in range(len(federation))]
        arrays["tested"] = np.asarray(torch.stack(tested).int().numpy())
    clients = pictured([client.kind for client in federation])
    if (found := client_examples(federation, clients)) is not None:
        arrays |= {"images": found[0], "labels": found[1], "pictured": np.asarray(clients)}
    elif (rows := client_rows(federation, clients)) is not None:
        arrays |= {"rows": rows, "pictured": np.asarray(clients)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()

"""The last model of a training, tested with other statistics of batch norm than those it was trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedatlas.client import ResidentData
from fedatlas.models import BATCH_NORM_LAYERS
from fedatlas.runs import Run
from papers.client2vec.variants import indexed, planned
from papers.kept_results import read_numbers, result_file, write_result
from papers.tables import UNFINISHED, Numbers, Task, Variant, task_config, task_federation

TESTED = {"as trained": "as_trained", "own images": "own_images", "all clients' images": "all_images"}
"""With whose statistics the last model is tested, and the key of the number."""
AGAIN = ", tested again"
BATCH = 256
ENOUGH = 64
"""Images of each client that make the statistics of all."""


def recomputed(task: Task) -> Numbers:
    """Return the last model's accuracy with the statistics of its training, and with recomputed ones.

    The training is that of the plain variant, in its folder: it is done first where it is not there.
    """
    plain = Variant(name=task.name, measure=indexed, settings=task.settings["of"])
    place = task.options.out / "runs" / f"{plain.key}-{task.seed}"
    own = replace(task, settings=plain.settings, folder=place)
    known = read_numbers(task.options.out, plain.key, task.seed)
    if known is None or UNFINISHED in known or not (place / "checkpoints" / "manifest.json").exists():
        known = indexed(own)
        name = task.name.removesuffix(AGAIN)
        content = {"name": name, "seed": task.seed, "settings": plain.settings, "quick": task.options.quick}
        write_result(result_file(task.options.out, plain.key, task.seed), {**content, "numbers": known})
    if UNFINISHED in known:
        return {UNFINISHED: known[UNFINISHED]}
    return _with_other_statistics(own)


def _with_other_statistics(task: Task) -> Numbers:
    sections, change, adjust = planned(task)
    config = task_config(task, sections)
    federation = task_federation(config) if change is None else change(task_federation(config))
    algorithm = config.algorithm() if adjust is None else adjust(config.algorithm())
    run, device = Run(task.folder), torch.device(task.options.device)
    federation = federation.to(device)
    right: dict[str, list[float]] = {key: [] for key in TESTED.values()}
    sizes = []
    everyone = torch.cat([client.train[:ENOUGH] for client in federation])
    for place, client in enumerate(federation):
        data = ResidentData(federation, place)
        network = run.model(client.name, algorithm=algorithm).to(device)
        sizes.append(len(client.test))
        for key, images in (("as_trained", None), ("own_images", client.train), ("all_images", everyone)):
            if images is not None:
                recompute(network, _batches(data, images))
            right[key].append(_accuracy(network, data, client.test))
    total = sum(sizes)
    return {
        key: sum(share * size for share, size in zip(shares, sizes, strict=True)) / total
        for key, shares in right.items()
    }


@torch.no_grad()
def recompute(network: nn.Module, batches: Sequence[Tensor]) -> None:
    """Replace the running statistics of every batch norm by the mean over batches of images."""
    norms = [module for module in network.modules() if isinstance(module, BATCH_NORM_LAYERS)]
    network.eval()
    for norm in norms:
        norm.reset_running_stats()  # type: ignore[operator]
        norm.momentum = None  # type: ignore[assignment]  # a plain mean over the batches
        norm.train()
    for images in batches:
        network(images)
    network.eval()


def _batches(data: ResidentData, indices: Tensor) -> list[Tensor]:
    return [data.batch(part, None).inputs for part in indices.split(BATCH) if len(part) > 1]


@torch.no_grad()
def _accuracy(network: nn.Module, data: ResidentData, indices: Tensor) -> float:
    network.eval()
    right = 0
    for part in indices.split(BATCH):
        batch = data.batch(part, None)
        right += int((network(batch.inputs)[1].argmax(1) == batch.labels).sum())
    return right / len(indices)

"""The main table with the 3x3 stem, where FedAvg is at the paper's height, and the controls that tell what helps.

    python -m papers.client2vec.main_table --precision bfloat16 --device cuda --jobs 8 --out runs/client2vec
    python -m papers.client2vec.main_table --plan      # what would be trained, and how many images that is

Four base algorithms; the original, i+ii, iii and all three; running statistics of batch norm averaged and kept by each
client; three seeds; two local epochs (``--length paper``: five). Trainings that another script has done are read.

The controls ask, of FedAvg with kept statistics, whether local training repairs the weights or only fits them to stale
statistics: the last model is tested again with statistics that are recomputed from the client's own training images,
and from those of all clients. And whether any penalty on sure answers does what the KL to the other classifier does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas.client.data import ResidentData
from fedatlas.models.norms import BATCH_NORM_LAYERS
from papers.client2vec import published
from papers.client2vec.effect import COLUMNS, KEPT, STEM, length, print_plan
from papers.client2vec.settings import CIFAR, MODELS, QUICK, STRATEGIES, WEIGHTS, Sections, read
from papers.client2vec.variants import indexed, measure_all, planned, training, with_index
from papers.kept_results import read_numbers, result_file, write_result
from papers.options import Options, one_of, script
from papers.tables import UNFINISHED, Cell, Numbers, Table, Task, Variant, task_config, task_federation, write_table

CASES = ("i+ii", "iii", "i+ii+iii")
STATISTICS: dict[str, Sections] = {"averaged": {}, "kept": {"training": {"buffers": "keep"}}}
BASES = ("FedAvg", "FedAvgM", "FedDyn", "MOON")
TESTED = {"as trained": "as_trained", "own images": "own_images", "all clients' images": "all_images"}
"""With whose statistics the last model is tested, and the key of the number."""
BATCH = 256
ENOUGH = 64
"""Images of each client that make the statistics of all."""


def changed(options: Options, statistics: str) -> Sections:
    """Return how a training differs from the setting's: the stem, the length, who has the statistics."""
    stem = {} if options.quick else {"model": MODELS["resnet18-cifar"]}
    return length(options, {**stem, **STATISTICS[statistics]})


def main_variants(options: Options) -> list[Variant]:
    """Return the trainings of the main table."""
    found = []
    for statistics in STATISTICS:
        for base in options.listed("bases", BASES):
            common: dict[str, Any] = {"base": base, "changes": changed(options, statistics)}
            found.append(training(f"{base}, {statistics}: original", options, **common))
            for title in options.listed("strategies", STRATEGIES):
                for cases in CASES:
                    name = f"{base}, {statistics}: {title} {cases}"
                    found.append(with_index(name, options, strategy=STRATEGIES[title], cases=cases, **common))
    return found


def controls(options: Options) -> list[Variant]:
    """Return FedAvg with parts of local training, and with a plain penalty on sure answers."""
    found, weight = [], WEIGHTS["global"]
    terms = {
        "divergence alone": {"lambda_o": 0.0, "lambda_d": weight},
        "orthogonality alone": {"lambda_o": weight, "lambda_d": 0.0},
    }
    for statistics in STATISTICS:
        changes = changed(options, statistics)
        for title, uses in terms.items():
            name = f"FedAvg, {statistics}: GLOBAL iii, {title}"
            found.append(with_index(name, options, strategy="global", cases="iii", uses=uses, changes=changes))
        for share in (0.1, 1.0, weight):
            name = f"FedAvg, {statistics}: confidence penalty {share:g}"
            found.append(training(name, options, changes=changes, confidence_penalty=share))
    return found


def retested(variants: Sequence[Variant]) -> list[Variant]:
    """Return the tests, with other statistics, of FedAvg's trainings with kept ones."""
    kept = [one for one in variants if one.name.startswith("FedAvg, kept:")]
    return [
        Variant(name=f"{one.name}, tested again", measure=recomputed, settings={"of": dict(one.settings)})
        for one in kept
    ]


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
        name = task.name.removesuffix(", tested again")
        content = {"name": name, "seed": task.seed, "settings": plain.settings, "quick": task.options.quick}
        write_result(result_file(task.options.out, plain.key, task.seed), {**content, "numbers": known})
    if UNFINISHED in known:
        return {UNFINISHED: known[UNFINISHED]}
    return _with_other_statistics(own)


def _with_other_statistics(task: Task) -> Numbers:
    from fedatlas.runs.run import Run

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


def tables(options: Options, main: list[Variant], others: list[Variant], again: list[Variant]) -> list[Table]:
    """Return the main table, that of the controls, and that of other statistics."""
    short = " 2 epochs." if options.extra["length"] == "short" else ""
    index = f" Index of {options.extra['index_epochs']} epochs, encoder {options.extra['encoder']}."
    setting = options.pick(f"{CIFAR}{short} ResNet-18 with the 3x3 stem.{index}", QUICK)
    found = [
        Table(title=title, setting=setting, columns=tuple(COLUMNS), rows={one.name: _row(one) for one in variants})
        for title, variants in (("Main table on CIFAR-10", main), ("Controls on CIFAR-10", others))
    ]
    rows = {one.name: [Cell(one.name, key=key) for key in TESTED.values()] for one in again}
    words = f"{setting} The model of the last round, tested with statistics of batch norm from other images."
    return [*found, Table(title="Other statistics on CIFAR-10", setting=words, columns=tuple(TESTED), rows=rows)]


def _row(one: Variant) -> list[Cell]:
    return [
        Cell(
            one.name,
            paper=_paper(one.name) if key == "best" else None,
            key=key,
            scale=1.0 if key == "rounds" else None,
        )
        for key in COLUMNS.values()
    ]


def _paper(name: str) -> float | None:
    """Return the paper's number: Table 1's, or Table 8's for local training alone."""
    base, _, case = name.partition(": ")
    base, _, _ = base.partition(", ")
    strategy, _, cases = case.partition(" ")
    if cases == "iii" and base in published.TABLE_8:
        _, federated, global_ = published.TABLE_8[base]
        return (federated if strategy == "FEDERATED" else global_)[0]
    return published.TABLE_1["CIFAR-10"].get(base, {}).get(case)


@script
def main() -> None:
    """Train what is missing, and print the three tables."""
    options = read(
        f"Client2Vec's main table, {STEM}, averaged statistics and {KEPT}",
        seeds=(0, 1, 2),
        bases="",
        strategies="GLOBAL",
        length="short",
        index_epochs=100,
        precision="float32",
        compile=False,
        plan=False,
    )
    one_of("length", options.extra["length"], ("paper", "short"))
    main, others = main_variants(options), controls(options)
    if options.extra["plan"]:
        print_plan([*main, *others], options)
        return
    again = retested([*main, *others])
    results = measure_all([*main, *others], options) | measure_all(again, options)
    for table in tables(options, main, others, again):
        write_table(table, results, options)


if __name__ == "__main__":
    main()

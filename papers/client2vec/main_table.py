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
from typing import Any

from papers.client2vec import published
from papers.client2vec.effect import COLUMNS, KEPT, STEM, length, print_plan
from papers.client2vec.settings import CIFAR, MODELS, QUICK, STRATEGIES, WEIGHTS, Sections, read
from papers.client2vec.statistics import AGAIN, TESTED, recomputed
from papers.client2vec.variants import measure_all, training, with_index
from papers.options import Options, one_of, script
from papers.tables import Cell, Table, Variant, write_table

CASES = ("i+ii", "iii", "i+ii+iii")
STATISTICS: dict[str, Sections] = {"averaged": {}, "kept": {"training": {"buffers": "keep"}}}
BASES = ("FedAvg", "FedAvgM", "FedDyn", "MOON")


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
    return [Variant(name=f"{one.name}{AGAIN}", measure=recomputed, settings={"of": dict(one.settings)}) for one in kept]


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

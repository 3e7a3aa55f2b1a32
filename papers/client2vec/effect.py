"""Does Client2Vec help? The main table, the search for a setting in which it does, and a federation of domains.

    python -m papers.client2vec.effect --part main --device cuda --jobs 8 --out runs/client2vec
    python -m papers.client2vec.effect --part search --device cuda --jobs 12 --out runs/client2vec
    python -m papers.client2vec.effect --part pacs --device cuda --jobs 8 --out runs/client2vec
    python -m papers.client2vec.effect --part main --plan          # what would be trained, and how many images that is

The main part trains as long as the paper does, five local epochs; ``--length short`` has two, at two fifths of the
images, and is the default of the search. The measure is the mean of the last ten evaluations, every
second round: the best of all jumps with the noise of single rounds. ``own models`` are those of a round's clients after
their training, each on its own test part: another question, another number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from papers.client2vec import published
from papers.client2vec.indexing import source_spec, whole_federation
from papers.client2vec.settings import BASES, CIFAR, MODELS, PACS, QUICK, STRATEGIES, WEIGHTS, Sections, read
from papers.client2vec.variants import AtlasUse, measure_all, training, with_index
from papers.options import Options, one_of, script
from papers.tables import Cell, Table, Variant, write_table

CASES = ("i", "i+ii", "iii", "i+ii+iii")
COLUMNS = {
    "last ten": "last_ten",
    "best": "best",
    "own models": "own",
    "sigma_client": "sigma_client",
    "worst client": "worst_client",
    "rounds": "rounds",
}
TESTED: Sections = {"training": {"evaluate_every": 2, "test_own": True}}
SEEDS = (0, 1, 2)
"""Of FedAvg in the main part and of ``REPEATED``; the others have those that the command line says, one by default."""
KEPT = "BN statistics kept by each client"
STEM = "CIFAR stem"
STEMS = {KEPT: "resnet18", f"{STEM}, {KEPT}": "resnet18-cifar"}
REPEATED = {f"{setting}: {case}" for setting in STEMS for case in ("original", "iii", "i+ii+iii")}
REPEATED |= {f"{STEM}, {KEPT}: iii, random vectors", *(f"{STEM}: {case}" for case in ("original", "i", "i+ii"))}
"""Of the search: where one seed showed a gain, what tells whether the index has made it, and small differences."""
LENGTHS = {"main": "paper", "search": "short", "pacs": "paper"}
SHORT: Sections = {"training": {"epochs": 2}}


@script
def main() -> None:
    """Train and print one part."""
    options = read(
        "Does Client2Vec help?",
        part="main",
        length="",
        model="resnet18",
        bases="FedAvg,FedAvgM",
        index_epochs=100,
        precision="float32",
        compile=False,
        plan=False,
    )
    part = one_of("part", options.extra["part"], LENGTHS)
    one_of("length", options.extra["length"] or LENGTHS[part], ("paper", "short"))
    one_of("model", options.extra["model"], MODELS)
    options = replace(options, extra={**options.extra, "length": options.extra["length"] or LENGTHS[part]})
    variants = {"main": main_part, "search": search_part, "pacs": pacs_part}[part](options)
    if options.extra["plan"]:
        print_plan(variants, options)
        return
    results = measure_all(variants, options)
    write_table(table(part, variants, options), results, options)


def length(options: Options, *more: Sections) -> Sections:
    """Return how the runs differ from the paper's setting: the length, and further changes."""
    short = options.extra["length"] == "short" and not options.quick
    merged: Sections = {}
    engine = {"precision": options.extra.get("precision", "float32"), "compile": options.extra.get("compile", False)}
    precise = {"training": engine}
    for change in (TESTED, precise, SHORT if short else {}, *more):
        for title, keys in change.items():
            merged[title] = {**merged.get(title, {}), **keys} if isinstance(keys, dict) else keys
    return merged


def main_part(options: Options) -> list[Variant]:
    """CIFAR-10: the original and each use alone and together, of both strategies, over the base algorithms."""
    found: list[Variant] = []
    model = {} if options.quick else {"model": MODELS[options.extra["model"]]}
    for base in options.listed("bases", BASES):
        common: dict[str, Any] = {"base": base, "changes": length(options, model)}
        own = [training(f"{base}, original", options, **common)]
        for title, strategy in STRATEGIES.items():
            for cases in CASES:
                own.append(with_index(f"{base}, {title} {cases}", options, strategy=strategy, cases=cases, **common))
        seeds = SEEDS if base == "FedAvg" and not options.quick else options.seeds
        found += [replace(variant, seeds=seeds) for variant in own]
    return found


def pacs_part(options: Options) -> list[Variant]:
    """PACS, a federation of domains: the same with FedAvg, and with statistics that clients keep.

    The original, sampling and aggregation have several seeds: there differences are small.
    """
    model = "mobilenet_v2" if options.extra["model"] == "resnet18" else options.extra["model"]
    chosen = {} if options.quick else {"model": MODELS[model]}
    common: dict[str, Any] = {"data": "pacs", "changes": length(options, chosen)}
    found = [training("FedAvg, original", options, **common)]
    for title, strategy in STRATEGIES.items():
        for cases in CASES:
            found.append(with_index(f"FedAvg, {title} {cases}", options, strategy=strategy, cases=cases, **common))
    kept: dict[str, Any] = {"data": "pacs", "changes": length(options, {**chosen, "training": {"buffers": "keep"}})}
    found.append(training(f"{KEPT}: original", options, **kept))
    for cases in ("iii", "i+ii+iii"):
        found.append(with_index(f"{KEPT}: GLOBAL {cases}", options, strategy="global", cases=cases, **kept))
    random = source_spec("pacs", "random-vectors", options)
    uses = {"lambda_o": WEIGHTS["global"], "lambda_d": WEIGHTS["global"]}
    found.append(training(f"{KEPT}: iii, random vectors", options, use=AtlasUse(random, "iii", uses), **kept))
    average = source_spec("pacs", "feature-average", options)
    for cases in ("i", "i+ii"):
        found.append(training(f"FedAvg, feature average {cases}", options, use=AtlasUse(average, cases), **common))
    small = ("FedAvg, original", *(f"FedAvg, {title} {cases}" for title in STRATEGIES for cases in ("i", "i+ii")))
    return [replace(one, seeds=SEEDS) if one.name in small and not options.quick else one for one in found]


def search_part(options: Options) -> list[Variant]:
    """CIFAR-10 with FedAvg: one factor at a time, and then several; those that change the base come with their base."""
    found = [*_of_the_setting(options), *_controls(options), *_of_the_method(options), *_together(options)]
    return [replace(one, seeds=SEEDS) if one.name in REPEATED and not options.quick else one for one in found]


def _of_the_setting(options: Options) -> Iterator[Variant]:
    local = {"training": {"buffers": "keep"}}
    paper = {"training": {"epochs": 5}}
    cifar = {} if options.quick else {"model": MODELS["resnet18-cifar"]}
    factors: dict[str, tuple[Sections, bool]] = {
        "clean": ({}, False),
        KEPT: (local, False),
        "pixels of 0 to 255": ({}, True),
        "both (FL-bench's way)": (local, True),
        "the paper's length": (paper, False),
        STEM: (cifar, False),
        f"{STEM}, {KEPT}": ({**cifar, **local}, False),
    }
    for title, (change, unscaled) in factors.items():
        common: dict[str, Any] = {"changes": length(options, change), "unscaled": unscaled}
        yield training(f"{title}: original", options, **common)
        for cases in CASES if title == STEM else ("iii", "i+ii+iii"):
            yield with_index(f"{title}: {cases}", options, strategy="global", cases=cases, **common)


def _controls(options: Options) -> Iterator[Variant]:
    """Does the index help where clients keep their BN statistics, or would any vectors, one term, or smaller steps?"""
    random = source_spec("cifar10", "random-vectors", options)
    weight = WEIGHTS["global"]
    for title, model in STEMS.items():
        stem = {} if options.quick else {"model": MODELS[model]}
        kept = {**stem, "training": {"buffers": "keep"}}
        common: dict[str, Any] = {"changes": length(options, kept)}
        for cases in ("iii", "i+ii+iii"):
            uses = {"lambda_o": weight, "lambda_d": weight}
            yield training(f"{title}: {cases}, random vectors", options, use=AtlasUse(random, cases, uses), **common)
        for cases in ("i", "i+ii"):
            yield with_index(f"{title}: {cases}", options, strategy="global", cases=cases, **common)
        for term, uses in {
            "orthogonality": {"lambda_o": weight, "lambda_d": 0.0},
            "divergence": {"lambda_o": 0.0, "lambda_d": weight},
        }.items():
            name = f"{title}: iii, {term} alone"
            yield with_index(name, options, strategy="global", cases="iii", uses=uses, **common)
        slower = length(options, {**kept, "optimizer": {"lr": 0.002}})
        yield training(f"{title}: original, a fifth of the rate", options, changes=slower)


def _of_the_method(options: Options) -> Iterator[Variant]:
    common: dict[str, Any] = {"strategy": "global", "changes": length(options)}
    for title, uses in METHOD.items():
        yield with_index(f"iii, {title}", options, cases="iii", uses=uses, **common)
    yield with_index("iii, label-free index", options, cases="iii", label_free=True, **common)
    yield with_index("ii", options, cases="ii", **common)
    for tau in (0.1, 0.5, 1.0, 2.0):
        yield with_index(f"i, tau {tau}", options, cases="i", uses={"tau": tau}, **common)
    for half in ("label", "feature"):
        uses = {"tau": 0.1, "half": half}
        yield with_index(f"i, tau 0.1, {half} half", options, cases="i", uses=uses, **common)
    histogram = source_spec("cifar10", "label-histogram", options)
    for cases in ("i", "i+ii"):
        changes = length(options)
        yield training(f"{cases}, label histogram", options, use=AtlasUse(histogram, cases), changes=changes)


def _together(options: Options) -> Iterator[Variant]:
    local = {"training": {"buffers": "keep"}}
    personal = {"personal": True, "test_through": "g"}
    for title, change, unscaled in (
        ("P and G kept, tested through G", {}, False),
        ("the same, FL-bench's way", local, True),
    ):
        common: dict[str, Any] = {"strategy": "global", "changes": length(options, change), "unscaled": unscaled}
        yield with_index(f"i+ii+iii, {title}", options, cases="i+ii+iii", uses=personal, **common)
        free = {**personal, "detach_teacher": True}
        yield with_index(f"iii, {title}, teacher detached", options, cases="iii", uses=free, label_free=True, **common)


METHOD: dict[str, dict[str, Any]] = {
    "weight 1": {"lambda_o": 1.0, "lambda_d": 1.0},
    "weight 0.1": {"lambda_o": 0.1, "lambda_d": 0.1},
    "orthogonality alone": {"lambda_o": 5.0, "lambda_d": 0.0},
    "divergence alone": {"lambda_o": 0.0, "lambda_d": 5.0},
    "teacher detached": {"detach_teacher": True},
    "reverse divergence": {"kl": "reverse"},
    "tested through G": {"test_through": "g"},
    "P and G kept, tested through h": {"personal": True},
    "P and G kept, tested through G": {"personal": True, "test_through": "g"},
    "inner products, weight 0.05": {"mode": "mean_dot", "lambda_o": 0.05, "lambda_d": 1.0},
    "inner products summed over clients, weight 0.02": {"mode": "sum_dot", "lambda_o": 0.02, "lambda_d": 1.0},
}
"""The readings of Eq. 4, each against the case iii of the clean setting (weight 5)."""


def table(part: str, variants: Sequence[Variant], options: Options) -> Table:
    """Return a part's table; the paper's figures are bests."""
    titles = {"main": "Effect on CIFAR-10", "search": "Search on CIFAR-10", "pacs": "Effect on PACS"}
    model = options.extra["model"]
    short = " Shorter: 2 epochs." if options.extra["length"] == "short" else ""
    setting = PACS if part == "pacs" else f"{CIFAR}{short} Network {model}."
    if options.quick:
        setting = QUICK
    rows = {
        variant.name: [
            Cell(
                variant.name,
                paper=_paper(part, variant.name) if key == "best" else None,
                key=key,
                scale=1.0 if key == "rounds" else None,
            )
            for key in COLUMNS.values()
        ]
        for variant in variants
    }
    index = options.pick(f" Index of {options.extra['index_epochs']} epochs, encoder {options.extra['encoder']}.", "")
    return Table(title=titles[part], setting=setting + index, columns=tuple(COLUMNS), rows=rows)


def _paper(part: str, name: str) -> float | None:
    base, _, rest = name.partition(", ")
    return published.TABLE_1["CIFAR-10"].get(base, {}).get(rest) if part == "main" else None


def print_plan(variants: Sequence[Variant], options: Options) -> None:
    """Print what would be trained and how many images each training sees, without training."""
    total = 0.0
    for variant in variants:
        training_, data = variant.settings["training"], variant.settings["data"]
        federation = whole_federation(data, options)
        mean = sum(len(client.train) for client in federation) / len(federation)
        cohort = training_["cohort"]
        size = cohort if isinstance(cohort, int) else cohort * len(federation)
        images = training_["rounds"] * size * mean * training_["epochs"] * len(variant.seeds or options.seeds)
        total += images
        print(f"{images / 1e6:6.2f} million images  {variant.name}", file=sys.stdout)
    print(f"{total / 1e6:6.2f} million images in all, {len(variants)} variants")


if __name__ == "__main__":
    main()

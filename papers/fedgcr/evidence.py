"""What ``docs/evidence/fedgcr.md`` says, measured: eight methods, both halves, the groups, what travels.

    python -m papers.fedgcr.evidence --device cuda --jobs 8 --minutes 9 --data-folder PACKED --out runs/fedgcr
    python -m papers.report runs/fedgcr docs/evidence/fedgcr.md

The most telling trainings come first, and none begins after ``--minutes``; the same command goes on where the time was
up. The tables are written to ``evidence.md`` in the folder. ``--only '^$'`` writes them without measuring.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from papers.fedgcr.data import TYPES
from papers.fedgcr.report import page
from papers.fedgcr.variants import ABLATION, METHODS, QUICK, ROUNDS, variant
from papers.kept_results import read_numbers
from papers.options import Options, read_options, script
from papers.tables import Numbers, Variant, measure

DATA = ("digit-five", "pacs")
SEEDS = (0, 1, 2)
COST_ROUNDS = 6


def plan(options: Options) -> list[Variant]:
    """Return the trainings with their seeds, the most telling first."""
    slowest_first = list(dict.fromkeys(["fedgcr", "fedmix", "harmofl", "fedsam", *METHODS.values()]))
    main = [variant(options, data, 10, method) for data in DATA for method in slowest_first]
    halves = [variant(options, data, 10, method) for data in DATA for method in ABLATION.values()]
    balanced = [
        variant(options, data, factor, method) for factor in (1, 5) for data in DATA for method in slowest_first
    ]
    counts = [
        variant(options, data, 10, "fedgcr", num_groups=TYPES[data] + more) for data in DATA for more in (-2, -1, 1, 2)
    ]
    methods = [variant(options, data, 10, "fedgcr", method=method) for data in DATA for method in ("kmeans", "finch")]
    code = [variant(options, data, 10, "fedgcr", preset="as_published_code") for data in DATA]
    first = [replace(one, seeds=SEEDS[:1]) for one in (*main, *halves)]
    again = [replace(one, seeds=SEEDS[1:]) for one in (*main, *halves)]
    rest = [replace(one, seeds=SEEDS[:1]) for one in (*balanced, *methods, *code, *counts)]
    return first + rest if options.quick else first + again + rest


def costs(options: Options) -> list[Variant]:
    """Return short trainings whose time is taken with nothing beside them."""
    found = []
    for method in ABLATION.values():
        one = variant(options, "digit-five", 10, method)
        settings = {**one.settings, "rounds": COST_ROUNDS, "evaluate_every": COST_ROUNDS}
        found.append(replace(one, name=f"alone, {method}", settings=settings, seeds=(0,)))
    return found


def gather(variants: Sequence[Variant], out: Path) -> dict[str, dict[str, Numbers]]:
    """Return the numbers of all variants that are there, by name and seed."""
    found: dict[str, dict[str, Numbers]] = {}
    for one in variants:
        for seed in one.seeds:
            numbers = read_numbers(out, one.key, seed)
            if numbers is not None:
                found.setdefault(one.name, {})[str(seed)] = numbers
    return found


@script
def main() -> None:
    """Measure what is missing, and write the tables."""
    options = read_options(
        "What docs/evidence/fedgcr.md says",
        rounds=ROUNDS,
        quick_rounds=2,
        minutes=9.0,
        precision="bfloat16",
        weights="",
    )
    trainings, timed = plan(options), costs(options)
    measure(timed, replace(options, jobs=1))
    measure(trainings, options)
    results = gather([*trainings, *timed], options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "evidence.md"
    file.write_text(page(results) if not options.quick else f"{QUICK}\n\n{page(results)}")
    print(f"{file}: {sum(map(len, results.values()))} trainings")


if __name__ == "__main__":
    main()

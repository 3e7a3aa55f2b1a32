"""What ``docs/evidence/fedgcr.md`` says, measured: eight methods, both halves, the groups, what travels.

    python -m papers.fedgcr.evidence --device cuda --jobs 8 --minutes 9 --data-folder PACKED --out runs/fedgcr
    python -m papers.fedgcr.evidence --report runs/fedgcr/evidence.json > docs/evidence/fedgcr.md

The most telling trainings come first, and none begins after ``--minutes``. All numbers are written to ``evidence.json``
in the folder; a later call with that file there goes on where the time was up, and ``--report`` prints the page.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedatlas.errors import DataError
from papers.fedgcr.data import TYPES
from papers.fedgcr.report import page
from papers.fedgcr.variants import ABLATION, METHODS, ROUNDS, variant
from papers.kept_results import read_numbers, result_file, write_result
from papers.options import Options, read_options, script
from papers.tables import Variant, measure

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
    again = [replace(one, seeds=SEEDS[1:]) for one in main]
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


def gather(variants: Sequence[Variant], out: Path) -> dict[str, dict[str, object]]:
    """Return the numbers of all variants that are there, by name and seed."""
    found: dict[str, dict[str, object]] = {}
    for one in variants:
        for seed in one.seeds:
            numbers = read_numbers(out, one.key, seed)
            if numbers is not None:
                found.setdefault(one.name, {})[str(seed)] = numbers
    return found


def read_evidence(file: Path) -> dict[str, Any]:
    """Return what an earlier call wrote."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read as numbers of this script: {error}. Give its evidence.json.") from None
    if not isinstance(content, dict) or "results" not in content:
        raise DataError(f"{file} holds no results of this script. Give its evidence.json.")
    return content


def restore(variants: Sequence[Variant], out: Path) -> None:
    """Write the results that an earlier call's ``evidence.json`` holds, so that they are not measured again."""
    file = out / "evidence.json"
    known = read_evidence(file)["results"] if file.exists() else {}
    for one in variants:
        for seed in one.seeds:
            numbers, target = known.get(one.name, {}).get(str(seed)), result_file(out, one.key, seed)
            if numbers is not None and not target.exists():
                write_result(target, {"name": one.name, "seed": seed, "settings": one.settings, "numbers": numbers})


@script
def main() -> None:
    """Measure, or print the page."""
    begun = time.time()
    options = read_options(
        "What docs/evidence/fedgcr.md says", rounds=ROUNDS, quick_rounds=2, minutes=9.0, report="", precision="bfloat16"
    )
    file = options.out / "evidence.json"
    if options.extra["report"]:
        print(page(read_evidence(Path(options.extra["report"]))), end="")
        return
    trainings, timed = plan(options), costs(options)
    restore([*trainings, *timed], options.out)
    machine = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    words = {"machine": f"{machine}, torch {torch.__version__}", "rounds": options.rounds, "quick": options.quick}
    words |= {"precision": options.extra["precision"]}
    measure(timed, replace(options, jobs=1))
    measure(trainings, options)
    results = gather([*trainings, *timed], options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**words, "seconds": time.time() - begun, "results": results}))
    print(f"{file}: {sum(map(len, results.values()))} trainings, {time.time() - begun:.0f} s")
    print(f"the page: python -m papers.fedgcr.evidence --report {file}")


if __name__ == "__main__":
    main()

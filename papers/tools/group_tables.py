"""Tables of what ``papers.tools.groups`` measured, as docs/evidence/groups.md shows them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from fedatlas.report import over_seeds

Result = dict[str, Any]
NAMES = {
    "fedavg": "FedAvg",
    "auto": "**auto**",
    "auto at head": "auto, the head by group",
    "auto at norms": "auto, the norms by group",
    "all groups": "all groups that were found, from the beginning",
    "true groups": "the true groups",
    "true groups at head": "the true groups, the head by group",
    "true groups at norms": "the true groups, the norms by group",
    "fedbn": "FedBN",
    "fedpce": "FedPCE",
    "ifca": "IFCA",
    "cfl": "CFL",
}
"""The methods in the order of the tables."""


def tables(results: Sequence[Result]) -> str:
    """Return a table of the means over seeds, and one by domain for each cell whose results are kept by domain."""
    rows: dict[tuple[str, str], list[Result]] = {}
    order = list(NAMES)
    for result in sorted(best_starts(results), key=lambda one: (order.index(one["method"]), one["seed"])):
        rows.setdefault((result["cell"], result["method"]), []).append(result)
    cells = list(dict.fromkeys(result["cell"] for result in results))
    plain = [cell for cell in cells if not any(own[0]["kinds"] for (name, _), own in rows.items() if name == cell)]
    found = [_by_domain(cell, {key[1]: own for key, own in rows.items() if key[0] == cell}) for cell in cells]
    overview = _overview({key: own for cell in plain for key, own in rows.items() if key[0] == cell})
    return "\n\n".join(text for text in (overview, *found) if text)


def paired(results: Sequence[Result]) -> str:
    """Return a table of ``auto`` less each other method on the same seeds, in points, with the interval of 95 %."""
    found = {(one["cell"], one["method"], one["seed"]): 100 * one["accuracy"] for one in best_starts(results)}
    lines = ["| cell | auto less | points | by seed |", "|" + "---|" * 4]
    for cell, method in dict.fromkeys((cell, method) for cell, method, _ in found if method != "auto"):
        seeds = sorted(own[2] for own in found if own[:2] == (cell, method) and (cell, "auto", own[2]) in found)
        off = [found[cell, "auto", seed] - found[cell, method, seed] for seed in seeds]
        if len(off) > 1:
            mean_off, half = over_seeds(off)
            by_seed = ", ".join(f"{value:+.1f}" for value in off)
            lines.append(f"| {cell} | {NAMES[method]} | {mean_off:+.2f} ± {half:.2f} | {by_seed} |")
    return "\n".join(lines)


def best_starts(results: Sequence[Result]) -> list[Result]:
    """Return the results with one of IFCA's starts for each federation: that of the lowest training loss."""
    kept: dict[tuple[Any, ...], Result] = {}
    for result in results:
        key = (result["cell"], result["seed"], result["method"])
        if key not in kept or result["train loss"] < kept[key]["train loss"]:
            kept[key] = result
    return list(kept.values())


def _overview(rows: dict[tuple[str, str], list[Result]]) -> str:
    if not rows:
        return ""
    lines = ["| cell | method | accuracy | by seed | ARI | models | MB | more work |", "|" + "---|" * 8]
    for (cell, method), own in rows.items():
        ari = [result["ari"] for result in own if result["ari"] is not None]
        lines.append(
            f"| {cell} | {NAMES[method]} | {_percent(own, 'accuracy')} | {f'{mean(ari):.2f}' if ari else '–'} | "
            f"{', '.join(str(result['models'] or 1) for result in own)} | "
            f"{mean(result['megabytes'] for result in own):,.0f} | {_work(own)} |"
        )
    return "\n".join(lines)


def _by_domain(cell: str, rows: dict[str, list[Result]]) -> str:
    """Return the accuracy of each domain, its mean over seeds, and who left the common model."""
    rows = {method: own for method, own in rows.items() if own[0]["kinds"]}
    if not rows:
        return ""
    names = list(next(iter(rows.values()))[0]["kinds"])
    lines = [
        f"| {cell} | domain mean | by seed | {' | '.join(names)} | more work | left, by seed |",
        "|" + "---|" * (5 + len(names)),
    ]
    for method, own in rows.items():
        means = [{**result, "mean": mean(result["kinds"].values())} for result in own]
        each = " | ".join(f"{mean(100 * result['kinds'][name] for result in own):.1f}" for name in names)
        left = "; ".join(", ".join(map(str, result["trials"][-1])) or "nobody" for result in own if result["trials"])
        lines.append(f"| {NAMES[method]} | {_percent(means, 'mean')} | {each} | {_work(own)} | {left or '–'} |")
    return "\n".join(lines)


def _percent(own: Sequence[Result], key: str) -> str:
    """Return the mean over seeds, and each seed's value."""
    found = [100 * result[key] for result in own]
    return f"{mean(found):.1f} | {', '.join(f'{value:.1f}' for value in found)}"


def _work(own: Sequence[Result]) -> str:
    work = mean(result["extra work"] for result in own)
    return f"{work:.0%}".replace("%", " %") if work else "–"

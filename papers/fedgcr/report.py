"""The measured part of ``docs/evidence/fedgcr.md``, from the numbers that ``evidence.py`` kept."""

import textwrap
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from papers.fedgcr.data import TYPES
from papers.fedgcr.published import ABLATIONS, TABLE_1, TABLE_6
from papers.fedgcr.variants import ABLATION, FACTORS, METHODS, TITLES
from papers.tables import BROKEN, over_seeds

DATA = ("digit-five", "pacs")
PAPERS = {"digit-five": TABLE_1, "pacs": TABLE_6}
METRICS = ("domain_mean", "client_mean", "sigma_type", "sigma_client")
HEADS = ("domain mean", "client mean", "sigma_type", "sigma_client")
PRINTED = {"domain_mean": 0, "sigma_type": 1, "sigma_client": 2}
"""Which of the paper's three numbers a metric is; it has no mean over clients."""

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]


def page(results: Results) -> str:
    """Return the measured part of the page, and the names of what was not measured."""
    parts: list[str] = []
    for data in DATA:
        parts += [f"## {TITLES[data]}", ""]
        for factor in reversed(FACTORS):
            parts += methods_table(results, data, factor)
        parts += domains_table(results, data) + ablation_table(results, data) + groups_table(results, data)
        parts += variations_table(results, data)
    parts += costs_table(results) + gaps(results)
    return "\n".join(parts).rstrip() + "\n"


def wrapped(text: str) -> list[str]:
    """Return a paragraph as lines."""
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def gaps(results: Results) -> list[str]:
    """Return what the command would measure still."""
    missing = []
    for data in DATA:
        for factor, wanted in ((10, 3), (5, 1), (1, 1)):
            counts = {title: len(of(results, f"{data}, factor {factor}, {m}")) for title, m in METHODS.items()}
            if lacking := {title: wanted - count for title, count in counts.items() if count < wanted}:
                whole = len(lacking) == len(METHODS) and set(lacking.values()) == {wanted}
                which = "all methods" if whole else ", ".join(f"{title} ({count})" for title, count in lacking.items())
                missing.append(f"- {TITLES[data]}, factor {factor}: {which}")
        lacking = {title: 1 for title, name in variations(data).items() if not of(results, name)}
        if lacking:
            missing.append(f"- {TITLES[data]}, factor 10, FedGCR with {', '.join(lacking)}")
    if not missing:
        return []
    said = "The same commands go on with these; in brackets, how many seeds are missing."
    return ["## Not measured yet", "", *wrapped(said), "", *missing]


def figure(found: Sequence[Mapping[str, Any]], key: str, digits: int = 1, scale: float = 100.0) -> str:
    """Return a mean over seeds, with its deviation."""
    values = [scale * numbers[key] for numbers in found if numbers.get(key) is not None]
    if not values:
        return "broke" if any(BROKEN in numbers for numbers in found) else "–"
    return over_seeds(values, digits)


def of(results: Results, name: str) -> list[Mapping[str, Any]]:
    """Return a variant's numbers, by seed."""
    return [numbers for _, numbers in sorted(results.get(name, {}).items())]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table and an empty line."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def methods_table(results: Results, data: str, factor: int) -> list[str]:
    """Return the eight methods at one factor, and who is best."""
    rows, means, sigmas = [], {}, {}
    for title, method in METHODS.items():
        found = of(results, f"{data}, factor {factor}, {method}")
        row = [title, str(len(found))]
        for metric in METRICS:
            place = PRINTED.get(metric)
            theirs = "" if place is None else f" ({PAPERS[data][title][3 * FACTORS.index(factor) + place]:g})"
            row.append(f"{figure(found, metric)}{theirs}")
        if first := [numbers for numbers in found[:1] if "domain_mean" in numbers]:
            rows.append(row)
            means[title], sigmas[title] = first[0]["domain_mean"], first[0]["sigma_type"]
    if not rows:
        return []
    best, evenest = max(means, key=lambda title: means[title]), min(sigmas, key=lambda title: sigmas[title])
    said = (
        f"At seed 0 {best} has the highest domain mean, {100 * means[best]:.1f}, with a sigma_type of "
        f"{100 * sigmas[best]:.1f}; {evenest} has the lowest sigma_type, {100 * sigmas[evenest]:.1f}, with a domain "
        f"mean of {100 * means[evenest]:.1f}."
    )
    return [f"### Imbalance factor {factor}", "", *table(("", "seeds", *HEADS), rows), *wrapped(said), ""]


def domains_table(results: Results, data: str) -> list[str]:
    """Return accuracies by domain at factor 10."""
    first = next((found for m in METHODS.values() if (found := of(results, f"{data}, factor 10, {m}"))), [])
    domains = list(first[0]["domains"]) if first and "domains" in first[0] else []
    if not domains:
        return []
    rows = []
    for title, method in METHODS.items():
        found = [
            {domain: numbers["domains"][domain] for domain in domains}
            for numbers in of(results, f"{data}, factor 10, {method}")
            if "domains" in numbers
        ]
        rows.append([title, *(figure(found, domain) for domain in domains)])
    return ["### By domain, factor 10", "", *table(("", *domains), rows)]


def ablation_table(results: Results, data: str) -> list[str]:
    """Return each half alone at factor 10."""
    rows = []
    measured = {title: of(results, f"{data}, factor 10, {method}") for title, method in ABLATION.items()}
    count = min(map(len, measured.values())) or 1
    for title, every in measured.items():
        found = every[:count]
        theirs = ABLATIONS[data][title]
        row = [title]
        for metric in METRICS:
            place = PRINTED.get(metric)
            row.append(figure(found, metric) + ("" if place is None else f" ({theirs[place]:g})"))
        rows.append(row)
    which = "seed 0" if count == 1 else f"{count} seeds"
    return [f"### The halves of FedGCR, factor 10, {which}", "", *table(("", *HEADS), rows)]


def groups_table(results: Results, data: str) -> list[str]:
    """Return the cluster accuracy by round, for numbers of groups and methods."""
    lines: list[str] = []
    for factor in reversed(FACTORS):
        found = [numbers for numbers in of(results, f"{data}, factor {factor}, fedgcr") if numbers.get("groups")]
        if not found:
            continue
        rounds = [entry["round"] for entry in found[0]["groups"]]
        kinds = [kind for kind in found[0]["groups"][0] if kind not in ("round", "own")]
        rows = []
        for kind in kinds:
            by_round = [
                [entry[kind] for numbers in found for entry in numbers["groups"] if entry["round"] == number]
                for number in rounds
            ]
            name = {"kmeans": "k-means", "finch": "FINCH"}.get(kind, kind.replace("gmm ", "GMM, T' = "))
            rows.append([name, *(f"{100 * mean(values):.0f}" for values in by_round)])
        lines += [
            f"### Clients grouped with their own type, factor {factor}, percent by round",
            "",
            *wrapped(
                f"There are {TYPES[data]} types. The vectors are those that the clients sent in that round of a "
                f"training with T' = {TYPES[data]}, mean over {len(found)} seed{'' if len(found) == 1 else 's'}; "
                "k-means and FINCH look at the same vectors."
            ),
            "",
            *table(("round", *map(str, rounds)), rows),
        ]
    return lines


def variations(data: str) -> dict[str, str]:
    """Return FedGCR's other settings, by what they are called on the page."""
    names = {}
    for count in range(TYPES[data] - 2, TYPES[data] + 3):
        if count != TYPES[data]:
            names[f"T' = {count}"] = f"{data}, factor 10, fedgcr, num_groups {count}"
    names["k-means"] = f"{data}, factor 10, fedgcr, method kmeans"
    names["FINCH"] = f"{data}, factor 10, fedgcr, method finch"
    names["`preset = as_published_code`"] = f"{data}, factor 10, fedgcr, preset as_published_code"
    return names


def variations_table(results: Results, data: str) -> list[str]:
    """Return FedGCR with other numbers of groups, other methods of grouping and the other preset."""
    names = {"as in the paper (GMM, T' = T)": f"{data}, factor 10, fedgcr", **variations(data)}
    rows = [
        [title, *(figure(found[:1], key) for key in (*METRICS, "cluster_accuracy"))]
        for title, name in names.items()
        if (found := of(results, name))
    ]
    if len(rows) < 2:
        return []
    heads = ("", *HEADS, "own groups, last round")
    return ["### FedGCR with other settings, factor 10, seed 0", "", *table(heads, rows)]


def costs_table(results: Results) -> list[str]:
    """Return what travels and how long a round takes, nothing else on the machine."""
    base = of(results, "alone, fedavg")
    if not base:
        return []
    rows = []
    for method in ABLATION.values():
        found = of(results, f"alone, {method}")
        if not found:
            continue
        ratio = found[0]["seconds_a_round"] / base[0]["seconds_a_round"]
        sizes = [figure(found, key, 0, 1 / 1000) for key in ("bytes_down", "bytes_up")]
        rows.append([f"`{method}`", *sizes, figure(found, "seconds_a_round", 3, 1), f"{ratio:.2f}"])
    heads = ("", "kB to a client", "kB from a client", "seconds a round", "times FedAvg")
    return [
        "## What travels, and how long a round takes",
        "",
        *wrapped(
            "Digit-Five at factor 10, 22 clients, one training at a time, median of the rounds; the backbone stays "
            "where it is. Prompts, head and, for FedGC and FedGCR, GC-Net travel as float32, with what else is sent."
        ),
        "",
        *table(heads, rows),
    ]

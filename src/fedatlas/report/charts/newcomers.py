"""Clients that joined after training: the effect of tuning a few numbers, and the numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedatlas.report.charts.colors import DIVERGING, NO_DOMAIN
from fedatlas.report.charts.markup import Scale, cells, clipped, color_key, element, escape, figure, percent, svg, write
from fedatlas.runs.run import Run

_ROW = 26.0
_LEFT, _RIGHT, _WIDTH = 210.0, 640.0, 1040.0


def newcomers(runs: Sequence[Run], by_domain: dict[str, str]) -> str:
    """Return the section, or nothing where no client was brought in."""
    found = [(run.label, record) for run in runs for record in run.adapted]
    if not found:
        return ""
    said = (
        "After training, for each client on its own: what the algorithm keeps personal was tuned on the client's "
        "training part, everything shared rested, and nothing was sent. The ring is the accuracy on its test part "
        "before, the dot after."
    )
    return element("p", said, class_="note") + _before_and_after(found, by_domain) + _numbers(found)


def _before_and_after(found: Sequence[tuple[str, dict[str, Any]]], by_domain: dict[str, str]) -> str:
    along = Scale(0, 1, _LEFT, _RIGHT)
    bottom = 26 + _ROW * len(found)
    parts = []
    for value in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts.append(element("line", x1=along(value), x2=along(value), y1=20, y2=bottom, class_="grid"))
        parts.append(write(percent(value), along(value), 12, anchor="middle"))
    for row, (algorithm, record) in enumerate(found):
        y = 26 + _ROW * (row + 0.5)
        color = by_domain.get(record["domain"] or "", NO_DOMAIN)
        before, after = (along(record[f"accuracy_{when}"]) for when in ("before", "after"))
        change = f"{100 * record['accuracy_before']:.1f} → {100 * record['accuracy_after']:.1f}"
        said = f"{algorithm}, {record['client']}: {change}; start: {record['origin']}"
        hint = element("title", escape(f"{said}; model of round {record['round']}"))
        parts += [
            write(clipped(f"{algorithm}, {record['client']}", 32), 0, y + 4, "row-name", title=record["client"]),
            element("line", hint, x1=before, x2=after, y1=y, y2=y, stroke=color, class_="mean"),
            element("circle", hint, cx=before, cy=y, r=5.5, class_="ring", stroke=color),
            element("circle", hint, cx=after, cy=y, r=5, class_="dot", fill=color),
            write(change, _RIGHT + 22, y + 4, "name"),
            write(_cost(record), _RIGHT + 120, y + 4),
        ]
    return figure("Accuracy before and after, in percent", svg(_WIDTH, bottom, parts, "Before and after adapting"))


def _cost(record: dict[str, Any]) -> str:
    if not record["num_tuned"]:
        return "nothing is personal: tested only"
    numbers, examples = f"{record['num_tuned']:,} numbers", f"{record['num_examples']:,} examples"
    return f"{numbers}, {examples}, {record['num_steps']:,} steps, {record['seconds']:.1f} s"


def _numbers(found: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return clients' embeddings as rows of colours, for those that have one."""
    shown = [(algorithm, record) for algorithm, record in found if record["embedding"]]
    lengths = {len(record["embedding"]) for _, record in shown}
    if len(lengths) != 1:
        return ""
    values = np.array([record["embedding"] for _, record in shown])
    most = float(np.abs(values).max()) or 1.0
    height = 18.0 * len(shown)
    parts = [
        write(clipped(record["client"], 32), 0, 18 * row + 13, "row-name", title=record["client"])
        for row, (_, record) in enumerate(shown)
    ]

    def say(row: int, column: int) -> str:
        return f"{shown[row][1]['client']}, number {column + 1}: {values[row, column]:.3f}"

    parts += cells((values / most + 1) / 2, DIVERGING, (_LEFT, 0, _WIDTH - _LEFT, height), say)
    key = color_key(DIVERGING, f"−{most:.2f}", f"{most:.2f}")
    return figure(f"Their {lengths.pop()} numbers", svg(_WIDTH, height, parts, "The tuned numbers"), key)

"""How algorithms serve the clients: by client, by round, and against each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedatlas.report.groups import Group, Spread, final, scored
from fedatlas.report.intervals import over_examples, over_seeds, wilson
from fedatlas.report.packing import pack, pack_figures
from fedatlas.report.tables import best_rounds, columns_of, last_metric
from fedatlas.report.weights import spaced, weights_block
from fedatlas.runs.run import Run
from fedatlas.runs.schema import SHARES

MOST_FRAMES = 20
"""Rounds at which a page shows every client."""
FRAME_BYTES = 160_000
"""Of all algorithms' frames together."""
MOST_POINTS = 200
"""Of a curve."""
BINOMIAL = "accuracy"
"""The main metric that is a share of test examples, so that their number gives its interval."""
BY_CLASS, MOST_BY_CLASS = "recall_per_class", 20_000
"""The metric that says how each class is recognised, and how many such figures of all clients a page takes."""


@dataclass(frozen=True, eq=False)
class Served:
    """One algorithm, as it serves the clients of the page's federation."""

    group: Group
    alike: tuple[Run, ...]
    """Its runs on the split of the page's clients."""
    figures: np.ndarray
    """float64 (clients,): the main metric at the last evaluation, mean over ``alike``; NaN where not tested."""
    recorded: np.ndarray
    """float64 (2, clients): the ends of its interval where the runs recorded one, mean over ``alike``."""
    tested: np.ndarray
    """int64 (clients,): test examples."""
    took_part: np.ndarray
    """int64 (clients,): rounds in which it trained, in the first of ``alike``."""

    @classmethod
    def read(cls, group: Group, fingerprint: str, names: Sequence[str]) -> Served:
        """Return what an algorithm's runs say of the clients."""
        alike = tuple(run for run in group.runs if run.resolved["federation"]["fingerprint"] == fingerprint)
        place = {name: i for i, name in enumerate(names)}
        tested, rows = np.zeros(len(names), np.int64), []
        for run in alike:
            row = np.full((3, len(names)), np.nan)
            for line in _last_lines(run):
                if (i := place.get(line["client"])) is not None:
                    row[0, i], tested[i] = main_figure(line, run), line.get("num_tested", 0)
                    row[1:, i] = line.get("intervals", {}).get(run.metric, np.nan)
            rows.append(row)
        mean = _mean(rows, (3, len(names)))
        took_part = np.zeros(len(names), np.int64)
        for line in alike[0].clients if alike else ():
            if line.get("trained") and (i := place.get(line["client"])) is not None:
                took_part[i] += 1
        return cls(group, alike, mean[0], mean[1:], tested, took_part)

    @property
    def metric(self) -> str:
        """The name of the main metric."""
        return self.group.runs[0].metric

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the main metric is better."""
        return self.group.runs[0].higher_is_better(self.metric)

    def block(self, names: Sequence[str], shown: np.ndarray, frames: Frames, kind: str = "domain") -> dict[str, Any]:
        """Return the algorithm for the page; ``kind`` is the word for what clients are gathered by."""
        runs = self.group.runs
        low, high = self._intervals()
        shares = self.metric in SHARES
        training = runs[0].resolved["training"]
        return {
            "label": self.group.label,
            "privacy": _privacy(self.group),
            "seeds": len(runs),
            "alike": len(self.alike),
            "of": self._of(),
            "rounds": len(runs[0].rounds),
            "planned": training["rounds"],
            "unfinished": sum(len(run.rounds) < int(run.resolved["training"]["rounds"]) for run in runs),
            "metrics": _metrics(self.group, kind),
            "client_mean": _figure([v for run in runs if (v := last_metric("client_mean")(run)) is not None]),
            "best_round": best_rounds(self.group),
            "seconds": round(sum(run.seconds for run in runs), 1),
            "clients": {
                "value": pack_figures(self.figures[shown], shares=shares),
                "low": pack_figures(low[shown], shares=shares),
                "high": pack_figures(high[shown], shares=shares),
                "took_part": pack(self.took_part[shown], "u16"),
            },
            "curve": _curve(self.group),
            "frames": self._frames(names, shown, frames.values),
            "weights": weights_block(self.alike[0], names, shown, frames.algorithms) if self.alike else None,
            "classes": self._classes(names, shown),
            "newcomers": [_newcomer(record, run.metric) for run in runs for record in run.adapted],
        }

    def _of(self) -> str:
        """Return of which runs the clients' own figures are, where there are several: each may split the data anew."""
        if len(self.group.runs) == 1 or not self.alike:
            return ""
        count = len(self.group.runs)
        if len(self.alike) > 1:
            return (
                f"mean over {count} runs"
                if len(self.alike) == count
                else f"mean over {len(self.alike)} of {count} runs"
            )
        seeds = set(self.alike[0].resolved["seeds"].values())
        return f"seed {seeds.pop()}" if len(seeds) == 1 else f"one of {count} runs"

    def _intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of each client's interval: Wilson's of an accuracy, of others what the runs recorded."""
        if self.metric != BINOMIAL:
            return self.recorded[0], self.recorded[1]
        ends = [
            (np.nan, np.nan) if np.isnan(share) else wilson(float(share), int(count))
            for share, count in zip(self.figures, self.tested, strict=True)
        ]
        low, high = np.array(ends).T
        return low, high

    def _frames(self, names: Sequence[str], shown: np.ndarray, most: int) -> dict[str, Any] | None:
        """Return the main metric of every shown client at some rounds, of the first run."""
        if not self.alike:
            return None
        run = self.alike[0]
        numbers = [int(entry["round"]) for entry in scored(run)]
        if len(numbers) < 2:
            return None
        chosen = spaced(numbers, most)
        row = {number: i for i, number in enumerate(chosen)}
        column = {names[i]: j for j, i in enumerate(shown.tolist())}
        value = np.full((len(chosen), len(shown)), np.nan)
        for line in run.clients:
            i, j = row.get(line["round"]), column.get(line["client"])
            if i is not None and j is not None:
                value[i, j] = main_figure(line, run)
        shares = np.where(np.isnan(value), 255, 250 * np.nan_to_num(value))
        return {
            "rounds": chosen,
            "value": pack(shares, "u8") if self.metric in SHARES else pack_figures(value, shares=False),
        }

    def _classes(self, names: Sequence[str], shown: np.ndarray) -> dict[str, Any] | None:
        """Return each shown client's accuracy by class, where the run's records have it."""
        if not self.alike:
            return None
        own = {names[i]: j for j, i in enumerate(shown.tolist())}
        found = {
            own[line["client"]]: line[BY_CLASS]
            for line in _last_lines(self.alike[0])
            if isinstance(line.get(BY_CLASS), list) and line["client"] in own
        }
        if not found or len(found) * len(next(iter(found.values()))) > MOST_BY_CLASS:
            return None
        return {str(i): [_rounded(value) for value in row] for i, row in found.items()}


class Frames(NamedTuple):
    """How many rounds of every client a page can show."""

    values: int
    algorithms: int
    """On the page; they share the space."""


def frames_for(clients: int, algorithms: int, *, shares: bool = True) -> Frames:
    """Return at how many rounds the page can show every client; shares take less space than amounts.

    >>> [frames_for(*counts).values for counts in ((10, 2), (2000, 3), (2000, 60))]
    [20, 20, 2]
    """
    size = 1 if shares else 4
    most = min(MOST_FRAMES, max(2, FRAME_BYTES // (size * max(clients, 1) * max(algorithms, 1))))
    return Frames(most, algorithms)


def differences(served: Sequence[Served]) -> list[list[list[Any]]]:
    """Return for every two algorithms the difference in the main metric, half its interval, and what that is over."""
    return [[_difference(one.group, other.group) for other in served] for one in served]


def _difference(one: Group, other: Group) -> list[Any]:
    own, others = _by_seed(one), _by_seed(other)
    shared = [key for key in own if key in others]
    if len(shared) > 1:
        mean, half = over_seeds([own[key][0] - others[key][0] for key in shared])
        return [short(mean), short(half), f"{len(shared)} seeds"]
    key = shared[0] if shared else None
    pair = (own[key], others[key]) if key else (next(iter(own.values()), None), next(iter(others.values()), None))
    if pair[0] is None or pair[1] is None:
        return [None, None, "not evaluated"]
    if one.runs[0].metric != BINOMIAL:
        return [short(pair[0][0] - pair[1][0]), None, "one seed" if key else "different splits or seeds"]
    mean, half = over_examples(pair[0][0], pair[1][0], min(pair[0][1], pair[1][1]))
    return [short(mean), short(half), "test examples" if key else "test examples, different splits or seeds"]


def _by_seed(group: Group) -> dict[str, tuple[float, int]]:
    """Return main metric and test examples of the runs, by what makes two runs a pair: the split and the seeds."""
    found = {}
    for run in group.runs:
        if (entry := final(run)) is not None:
            key = f"{run.resolved['federation']['fingerprint']} {sorted(run.resolved.get('seeds', {}).items())}"
            value = main_figure(entry["evaluation"], run)
            if math.isfinite(value):
                found[key] = (value, int(entry["evaluation"].get("num_examples", 0)))
    return found


def _metrics(group: Group, kind: str) -> list[dict[str, Any]]:
    """Return the figures of the last evaluation: over several runs with their deviation, of one with an interval.

    ``kind`` is the word for what clients are gathered by: domain, or kind.
    """
    found = []
    parts = {BINOMIAL: "evaluation", "held out": "held_out"}
    for column in columns_of(group.runs[0]):
        values = [v for run in group.runs if (v := column.read(run)) is not None and math.isfinite(v)]
        if not values or column.title == "best":
            continue
        half = None
        if len(values) == 1 and group.runs[0].metric == BINOMIAL and column.title in parts:
            count = ((final(group.runs[0]) or {}).get(parts[column.title]) or {}).get("num_examples", 0)
            half = short(over_examples(values[0], 0.0, count)[1]) if count else None
        found.append(
            {
                "title": _title(column.title, kind, len(values)),
                "lower": column.lower_is_better,
                "about": column.note.replace("domain", kind),
            }
            | _figure(values, half)
        )
    return found


def _figure(values: Sequence[float], half: float | None = None) -> dict[str, float | None]:
    """Return a figure's mean over runs and their deviation; of one run half of its interval, if that is known."""
    if not values:
        return {"mean": None, "deviation": None, "half": None}
    spread = Spread.of(values)
    deviation = None if spread.deviation is None else short(spread.deviation)
    return {"mean": short(spread.mean), "deviation": deviation, "half": half}


def _title(column: str, kind: str, runs: int) -> str:
    if runs > 1 and column.startswith("worst"):
        return f"{column.replace('domain', kind)} of a run"
    spreads = {"sigma_type": f"spread over {kind}s", "sigma_client": "spread over clients"}
    return spreads.get(column, column.replace("_", " ").replace("domain", kind))


def _curve(group: Group) -> dict[str, Any]:
    """Return the main metric by round: mean over runs with the lowest and the highest, and of held-out clients."""
    block: dict[str, Any] = {}
    for part, key in (("evaluation", "train"), ("held_out", "held_out")):
        tracks = [
            {
                int(entry["round"]): value
                for entry in run.rounds
                if math.isfinite(value := main_figure(entry.get(part) or {}, run))
            }
            for run in group.runs
        ]
        tracks = [track for track in tracks if track]
        shared = sorted(set.intersection(*(set(track) for track in tracks))) if tracks else []
        rounds = spaced(shared, MOST_POINTS)
        if rounds:
            values = np.array([[track[number] for number in rounds] for track in tracks])
            block[key] = {
                "rounds": rounds,
                "mean": [short(value) for value in values.mean(0)],
                "low": [short(value) for value in values.min(0)],
                "high": [short(value) for value in values.max(0)],
            }
    return block


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 3)


def _newcomer(record: Mapping[str, Any], metric: str) -> dict[str, Any]:
    kept = ("client", "origin", "round", "num_examples", "num_steps", "num_tuned")
    figures = {when: record.get(f"{metric}_{when}") for when in ("before", "after")}
    known = {when: None if value is None else short(float(value)) for when, value in figures.items()}
    chosen = {key: record.get(key, "") for key in ("kept", "why")}  # not in records of 0.1.0
    return {key: record[key] for key in kept} | known | chosen | {"seconds": round(float(record["seconds"]), 4)}


def _last_lines(run: Run) -> Iterable[dict[str, Any]]:
    entry = final(run)
    number = None if entry is None else entry["round"]
    return (line for line in run.clients if line["round"] == number and run.metric in line)


def main_figure(figures: Mapping[str, Any], run: Run) -> float:
    """Return a run's main metric, such as an accuracy; NaN where there is none, or it is no number."""
    value = figures.get(run.metric)
    if not isinstance(value, int | float) or (run.metric in SHARES and not 0 <= value <= 1):
        return math.nan
    return float(value) if math.isfinite(value) else math.nan


def metric_block(served: Sequence[Served]) -> dict[str, Any]:
    """Return the metric that the page compares clients by: its name, whether in percent, and which way is better."""
    name = served[0].metric if served else BINOMIAL
    title = {"iou": "IoU", "rmse": "RMSE"}.get(name, name)
    higher = served[0].higher_is_better if served else True
    return {"name": name, "title": title, "percent": name in SHARES, "higher_is_better": higher}


def short(value: float) -> float:
    """Return a figure with the digits that a page needs.

    >>> short(0.123456), short(1234.5678), short(0.000123456)
    (0.1235, 1234.6, 0.00012346)
    """
    return float(f"{value:.5g}") if not 0.001 <= abs(value) <= 1 else round(float(value), 4)


def _privacy(group: Group) -> str:
    """Return what runs with differential privacy promise after their last round; nothing without any."""
    found = [spent for run in group.runs if (spent := _spent(run)) is not None]
    costs = [spent["epsilon"] for spent in found if spent["epsilon"] is not None]
    if not costs or len(costs) < len(group.runs):
        return ""
    return (
        f"epsilon {max(costs):.2f} at delta {found[0]['delta']:g}, for whole clients ({found[0]['neighbours']}), after "
        f"{len(group.runs[0].rounds)} rounds. It covers the shared parameters, and not this page: numbers of examples, "
        "losses and test figures have no noise."
    )


def _spent(run: Run) -> dict[str, Any] | None:
    """Return what the last round's record says about privacy, if a part of the run promises any."""
    last = run.rounds[-1].get("combination", {}) if run.rounds else {}
    return next((said for said in last.values() if isinstance(said, dict) and "epsilon" in said), None)


def _mean(rows: Sequence[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Return the mean over runs of what is known."""
    if not rows:
        return np.full(shape, np.nan)
    table = np.stack(rows)
    known = np.isfinite(table)
    total = np.where(known, table, 0).sum(0)
    return np.where(known.any(0), total / np.maximum(known.sum(0), 1), np.nan)

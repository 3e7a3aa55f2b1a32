"""Runs of one algorithm or custom name under the same settings: seeds and folds are repetitions."""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedatlas.data.federation import Origin
from fedatlas.errors import UsageError
from fedatlas.runs.run import Run


@dataclass(frozen=True)
class Spread:
    """A mean over repetitions, and their sample standard deviation (ddof 1) where there are several."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return mean and deviation of at least one value."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)

    def percent(self, digits: int = 2) -> str:
        """Return ``91.23`` or ``91.23 ± 0.41``, in percent."""
        return self.text(lambda value: f"{100 * value:.{digits}f}")

    def text(self, form: Callable[[float], str]) -> str:
        """Return the mean, with the deviation where there is one."""
        return form(self.mean) if self.deviation is None else f"{form(self.mean)} ± {form(self.deviation)}"


@dataclass(frozen=True, eq=False)
class Group:
    """One row of a comparison: an algorithm under one setting, run once or several times."""

    label: str
    runs: tuple[Run, ...]

    def spread(self, read: Callable[[Run], float | None]) -> Spread | None:
        """Return a figure over the runs that have it."""
        values = [value for run in self.runs if (value := read(run)) is not None]
        return Spread.of(values) if values else None

    def curve(self, read: Callable[[dict[str, Any]], float | None]) -> list[tuple[int, Spread]]:
        """Return a figure over rounds, at the rounds where every run has it."""
        tracks = []
        for run in self.runs:
            pairs = ((int(entry["round"]), read(entry)) for entry in run.rounds)
            tracks.append({number: value for number, value in pairs if value is not None and math.isfinite(value)})
        tracks = [track for track in tracks if track]
        if not tracks:
            return []
        shared = sorted(set.intersection(*(set(track) for track in tracks)))
        return [(number, Spread.of([track[number] for track in tracks])) for number in shared]


def scored(run: Run) -> list[dict[str, Any]]:
    """Return the rounds at which clients were scored."""
    return [entry for entry in run.evaluations if run.metric in entry["evaluation"]]


def final(run: Run) -> dict[str, Any] | None:
    """Return the last round at which clients were scored, if there is one."""
    entries = scored(run)
    return entries[-1] if entries else None


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Return the runs by label and settings, in order of first appearance."""
    if not runs:
        raise UsageError("a report needs at least one run, got none.", code="data-empty", what="runs")
    _check_same_data(runs)
    found: dict[str, list[Run]] = {}
    for run in distinct_runs(runs):
        found.setdefault(json.dumps([run.label, _settings(run)], sort_keys=True), []).append(run)
    members = list(found.values())
    labels = _labels([group[0] for group in members])
    return [Group(label, tuple(group)) for label, group in zip(labels, members, strict=True)]


def distinct_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, each folder's once."""
    found: dict[Path, Run] = {}
    for run in runs:
        found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def same_split(runs: Sequence[Run]) -> list[Run]:
    """Return the runs whose clients hold exactly the examples of the first run's clients."""
    fingerprint = runs[0].resolved["federation"]["fingerprint"]
    return [run for run in runs if run.resolved["federation"]["fingerprint"] == fingerprint]


def split_note(runs: Sequence[Run]) -> str:
    """Return a sentence where rows are not over the same splits of the data, nothing where they are.

    The seeds of one row may be over several splits, if the other rows' are over the same ones.
    """
    groups = group_runs(runs)
    splits = [{run.resolved["federation"]["fingerprint"] for run in group.runs} for group in groups]
    others = [group.label for group, own in zip(groups, splits, strict=True) if own != splits[0]]
    if not others:
        return ""
    return f"The rows do not all share one split of the data: {groups[0].label} has another than {', '.join(others)}."


def flatten(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves of nested settings with the path to each."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from flatten(value, (*path, str(key)))
    elif isinstance(tree, list) and any(isinstance(item, dict | list) for item in tree):
        for i, value in enumerate(tree):
            yield from flatten(value, (*path, str(i)))
    else:
        yield path, tree


def plain(value: Any) -> str:
    """Return a setting as a person would write it."""
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value) or "none"
    if value is None or value == {}:
        return "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _check_same_data(runs: Sequence[Run]) -> None:
    first = runs[0].resolved["federation"]
    for run in runs[1:]:
        other = run.resolved["federation"]
        if other["data"] != first["data"] or other["classes"] != first["classes"]:
            raise UsageError(
                f"one report compares runs on the same data; {runs[0].folder} has {first['data']} with "
                f"{len(first['classes'])} classes, {run.folder} has {other['data']} with {len(other['classes'])}. "
                "Write a report for each.",
                code="data-differ",
                runs=(str(runs[0].folder), str(run.folder)),
            )


def _settings(run: Run) -> dict[str, Any]:
    return {**_partition(run), **{part: run.resolved[part] for part in ("algorithm", "model", "training")}}


def _partition(run: Run) -> dict[str, Any]:
    """Return how the clients were made, but for the seed and the fold.

    Where the run has no full record of it (a federation by hand, a custom partition, an older version), its line stands
    for it, seed and all: rather a row too many than a mean over different partitions.
    """
    known = run.resolved["federation"]
    origin = Origin.read(known.get("origin"))
    if origin is None or origin.rule is None or origin.test is None:
        return {"partition": known["partition"]}
    return {
        "partition": origin.rule,
        "test": origin.test,
        "test_fraction": origin.test_fraction,
        "held_out": origin.held_out,
        "folds": origin.folds,
    }


def _labels(runs: Sequence[Run]) -> list[str]:
    """Return the runs' labels; where one occurs twice, with up to three settings that tell them apart."""
    labels = []
    for i, run in enumerate(runs):
        alike = [dict(flatten(_settings(other))) for other in runs if other.label == run.label]
        own = dict(flatten(_settings(run)))
        differing = [path for path in own if len({repr(settings.get(path)) for settings in alike}) > 1]
        shown = ", ".join(f"{path[-1]}={plain(own[path])}" for path in differing[:3])
        label = f"{run.label} ({shown})" if shown else run.label
        labels.append(label if label not in labels else f"{label} #{i + 1}")
    return labels

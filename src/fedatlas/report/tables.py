"""The figures of runs as tables: one row per algorithm, mean ± standard deviation where it ran several times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from fedatlas.report.groups import Group, final, group_runs, scored
from fedatlas.runs.run import Run
from fedatlas.runs.schema import SHARES

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One figure of a run."""

    title: str
    read: Callable[[Run], float | None]
    form: Callable[[float], str]
    lower_is_better: bool = False
    note: str = ""
    """What it means, in a few words; empty where the report finds words in the runs."""
    always: bool = False
    """Whether it is shown where no run has it."""

    def cell(self, group: Group) -> str:
        """Return the figure as text, a dash where the runs do not have it."""
        spread = group.spread(self.read)
        return MISSING if spread is None else spread.text(self.form)

    def best(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups that are best in this column, as far as the shown digits tell."""
        found = [(group, spread.mean) for group in groups if (spread := group.spread(self.read)) is not None]
        if len(found) < 2:
            return []
        best = (min if self.lower_is_better else max)(mean for _, mean in found)
        return [group for group, mean in found if self.form(mean) == self.form(best)]


def last_metric(key: str, part: str = "evaluation") -> Callable[[Run], float | None]:
    """Return a reader of one metric of the last evaluation."""

    def read(run: Run) -> float | None:
        value: float | None = ((final(run) or {}).get(part) or {}).get(key)
        return value

    return read


def best_main(run: Run) -> float | None:
    """Return a run's best value of its main metric."""
    return run.best[run.metric] if scored(run) else None


def percent(value: float) -> str:
    """Return a share in percent, without the sign; of so many test examples a second decimal would be noise."""
    return f"{100 * value:.1f}"


def plain_amount(value: float) -> str:
    """Return an amount with four digits."""
    return f"{value:.4g}"


def seconds(value: float) -> str:
    """Return seconds with as many decimals as they deserve."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def columns_of(run: Run) -> tuple[Column, ...]:
    """Return the figures of a run's main metric, in percent where it is a share."""
    metric, lower = run.metric, not run.higher_is_better(run.metric)
    form = percent if metric in SHARES else plain_amount
    spread = partial(Column, form=form, lower_is_better=True)
    level = partial(Column, form=form, lower_is_better=lower)
    return (
        level(metric, last_metric(metric), note="weighed by test examples", always=True),
        level("domain mean", last_metric("domain_mean"), note="every domain counts alike"),
        level("worst domain", last_metric("worst_domain")),
        spread("sigma_type", last_metric("sigma_type"), note="spread over domains"),
        spread("sigma_client", last_metric("sigma_client"), note="spread over clients", always=True),
        level("worst client", last_metric("worst_client"), note=f"{metric} of the worst client", always=True),
        level("held out", last_metric(metric, "held_out"), note="clients that never trained"),
        level("best", best_main, always=True),
    )


SECONDS = Column("seconds", lambda run: run.seconds if run.timings else None, seconds, lower_is_better=True)


def shown_columns(groups: Sequence[Group]) -> list[Column]:
    """Return the columns that mean something for these runs: no domains, no domain mean."""
    return [c for c in columns_of(groups[0].runs[0]) if c.always or any(group.spread(c.read) for group in groups)]


def results_table(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return one row per algorithm, its figures as text: shares in percent, from the last evaluation.

    The main metric stands under its name, such as ``accuracy`` or ``rmse``; one that is an amount is not in percent.
    ``best`` is its best value of any evaluation and ``best round`` where it was; ``seconds`` is training alone,
    and ``x NAME`` the median over rounds of its seconds, relative to the first row. All rows have the same keys.
    """
    groups = group_runs(runs)
    rows = []
    for group in groups:
        row = {"algorithm": group.label}
        if any(len(other.runs) > 1 for other in groups):
            row["runs"] = str(len(group.runs))
        row |= {column.title: column.cell(group) for column in shown_columns(groups)}
        row |= {"best round": best_rounds(group), "seconds": SECONDS.cell(group)}
        if len(groups) > 1:
            row[f"x {groups[0].label}"] = relative_time(group, groups[0])
        rows.append(row)
    return rows


def table_note(runs: Sequence[Run]) -> str:
    """Return in what the figures of a table are, and what is after their "±"."""
    run = runs[0]
    alone = "; local: each client alone, the yardstick" if {"local"} < {own.name for own in runs} else ""
    if run.metric in SHARES:
        said = "accuracies in percent" if run.metric == "accuracy" else f"{run.metric} in percent"
    else:
        said = f"{run.metric}: {'higher' if run.higher_is_better(run.metric) else 'lower'} is better"
    several = any(len(group.runs) > 1 for group in group_runs(runs))
    return (f"{said}; mean ± standard deviation over runs" if several else said) + alone


def relative_time(group: Group, first: Group) -> str:
    """Return a round's training time (the median over rounds and runs) relative to another group's."""
    own, other = round_seconds(group), round_seconds(first)
    return f"{own / other:.2f}" if own and other else MISSING


def round_seconds(group: Group) -> float:
    """Return the median seconds that training took in a round."""
    found = [float(entry["train"]) for run in group.runs for entry in run.timings]
    return median(found) if found else 0.0


def best_rounds(group: Group) -> str:
    """Return the round of the best main metric, or the span of those of several runs."""
    found = sorted(int(run.best["round"]) for run in group.runs if scored(run))
    if not found:
        return MISSING
    return str(found[0]) if found[0] == found[-1] else f"{found[0]}–{found[-1]}"

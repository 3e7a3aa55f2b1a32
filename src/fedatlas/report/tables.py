"""The figures of runs as tables: one row per algorithm, mean ± standard deviation where it ran several times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from fedatlas.report.charts.colors import cell_color
from fedatlas.report.charts.markup import element, escape
from fedatlas.report.charts.symbols import mark
from fedatlas.report.groups import Group, Spread, final, group_runs, scored
from fedatlas.runs.run import Run

MISSING = "–"


@dataclass(frozen=True)
class Column:
    """One figure of a run."""

    title: str
    read: Callable[[Run], float | None]
    lower_is_better: bool = False
    form: Callable[[float], str] = lambda value: f"{100 * value:.2f}"
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


def best_accuracy(run: Run) -> float | None:
    """Return the highest accuracy of a run."""
    return run.best["accuracy"] if scored(run) else None


def seconds(value: float) -> str:
    """Return seconds with as many decimals as they deserve."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


ACCURACY = Column("accuracy", last_metric("accuracy"), note="weighed by test examples", always=True)
COLUMNS = (
    ACCURACY,
    Column("domain mean", last_metric("domain_mean"), note="every domain counts alike"),
    Column("worst domain", last_metric("worst_domain")),
    Column("sigma_type", last_metric("sigma_type"), lower_is_better=True, note="spread over domains"),
    Column("sigma_client", last_metric("sigma_client"), lower_is_better=True, note="spread over clients", always=True),
    Column("worst client", last_metric("worst_client"), note="accuracy of the worst client", always=True),
    Column("held out", last_metric("accuracy", "held_out"), note="clients that never trained"),
    Column("best", best_accuracy, always=True),
)
SECONDS = Column("seconds", lambda run: run.seconds if run.timings else None, lower_is_better=True, form=seconds)


def shown_columns(groups: Sequence[Group]) -> list[Column]:
    """Return the columns that mean something for these runs: no domains, no domain mean."""
    return [c for c in COLUMNS if c.always or any(group.spread(c.read) for group in groups)]


def results_table(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return one row per algorithm, its figures as text: shares in percent, from the last evaluation.

    ``best`` is the highest accuracy of any evaluation and ``best round`` where it was; ``seconds`` is training alone,
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


def relative_time(group: Group, first: Group) -> str:
    """Return a round's training time (the median over rounds and runs) relative to another group's."""
    own, other = round_seconds(group), round_seconds(first)
    return f"{own / other:.2f}" if own and other else MISSING


def round_seconds(group: Group) -> float:
    """Return the median seconds that training took in a round."""
    found = [float(entry["train"]) for run in group.runs for entry in run.timings]
    return median(found) if found else 0.0


def best_rounds(group: Group) -> str:
    """Return the round of the highest accuracy, or the span of those of several runs."""
    found = sorted(int(run.best["round"]) for run in group.runs if scored(run))
    if not found:
        return MISSING
    return str(found[0]) if found[0] == found[-1] else f"{found[0]}–{found[-1]}"


def worst_domains(group: Group) -> str:
    """Return the name of the worst domain, or the names where runs differ."""
    entries = [entry["evaluation"] for run in group.runs if (entry := final(run))]
    return ", ".join(dict.fromkeys(e["worst_domain_name"] for e in entries if "worst_domain_name" in e))


def comparison(groups: Sequence[Group]) -> str:
    """Return the table that compares algorithms, the best of each column emphasised."""
    columns = [*shown_columns(groups), SECONDS]
    best = {column.title: column.best(groups) for column in columns}
    head = element("th", "algorithm", scope="col")
    for column in columns:
        arrow = "↓" if column.lower_is_better else "↑"
        head += element("th", f"{escape(column.title)} <small>{arrow}</small>", scope="col")
    body = ""
    for group in groups:
        runs = element("small", f"{len(group.runs)} runs") if len(group.runs) > 1 else ""
        row = element("th", mark(group.color) + escape(group.label) + runs, scope="row")
        for column in columns:
            notes = {"worst domain": worst_domains(group), "best": f"round {best_rounds(group)}"}
            text, _, deviation = column.cell(group).partition(" ± ")
            below = [f"± {deviation}"] if deviation else []
            if column.title in notes and text != MISSING:
                below.append(notes[column.title])
            content = escape(text) + "".join(element("small", escape(line)) for line in below)
            row += element("td", content, class_="best" if group in best[column.title] else None)
        body += element("tr", row)
    return _table(element("tr", head), body)


def domain_table(groups: Sequence[Group], domain_colors: dict[str, str]) -> str:
    """Return the accuracy of each domain for each algorithm, cells coloured by it; held-out clients apart."""
    parts = [
        (part, title, domains)
        for part, title in (("evaluation", "clients that train"), ("held_out", "held-out clients"))
        if (domains := [name for name in domain_colors if name in _domains(groups, part)])
    ]
    if not parts:
        return ""
    tops = element("th", "") + "".join(element("th", title, colspan=len(d), class_="span") for _, title, d in parts)
    head = element("th", "algorithm", scope="col")
    for _, _, domains in parts:
        for domain in domains:
            head += element("th", mark(domain_colors[domain]) + escape(domain), scope="col")
    spreads = {
        (group, part, domain): group.spread(_domain_metric(part, domain))
        for group in groups
        for part, _, domains in parts
        for domain in domains
    }
    means = [spread.mean for spread in spreads.values() if spread is not None]
    body = ""
    for group in groups:
        row = element("th", mark(group.color) + escape(group.label), scope="row")
        for part, _, domains in parts:
            row += "".join(heat_cell(spreads[group, part, domain], min(means), max(means)) for domain in domains)
        body += element("tr", row)
    return _table((element("tr", tops) if len(parts) > 1 else "") + element("tr", head), body, "heat")


def heat_cell(spread: Spread | None, low: float, high: float) -> str:
    """Return a cell coloured by its value between the least and the largest of its table."""
    if spread is None:
        return element("td", MISSING)
    return element("td", escape(spread.percent(1)), style=f"background:{cell_color(spread.mean, low, high)}")


def _table(head: str, body: str, class_: str = "figures") -> str:
    table = element("table", element("thead", head) + element("tbody", body), class_=class_)
    return element("div", table, class_="scroll")


def _domains(groups: Sequence[Group], part: str) -> set[str]:
    entries = [(final(run) or {}).get(part) or {} for group in groups for run in group.runs]
    return {name for entry in entries for name in entry.get("domains", ())}


def _domain_metric(part: str, domain: str) -> Callable[[Run], float | None]:
    def read(run: Run) -> float | None:
        value: float | None = ((final(run) or {}).get(part) or {}).get("domains", {}).get(domain)
        return value

    return read

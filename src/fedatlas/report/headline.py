"""The top of a report: its title, the algorithms and their data, and the key figures."""

from collections.abc import Sequence
from typing import Any

from fedatlas.report.charts.markup import element, escape
from fedatlas.report.groups import Group, Spread
from fedatlas.report.members import Member, last_accuracies
from fedatlas.report.tables import Column, seconds, shown_columns, worst_domains
from fedatlas.runs.run import Run

FEW, MOST_NAMES = 10, 8
"""Fewer test examples than this are noted, and of so many clients the names are given."""


def default_title(groups: Sequence[Group]) -> str:
    """Return ``fedavg on digits`` or ``5 algorithms on digits``."""
    names = [group.label for group in groups]
    return f"{_list(names) if len(names) <= 3 else f'{len(names)} algorithms'} on {_federation(groups)['data']}"


def sentence(groups: Sequence[Group], members: Sequence[Member]) -> str:
    """Return the algorithms and their data as a sentence of markup."""
    run = groups[0].runs[0]
    federation, model, training = run.resolved["federation"], run.resolved["model"], run.resolved["training"]
    held_out = sum(member.held_out for member in members)
    domains = len({member.domain for member in members if member.domain is not None})
    clients = _number(len(members), "client") + (f" in {_number(domains, 'domain')}" if domains else "")
    size = f" ({model['num_parameters']:,} parameters)" if "num_parameters" in model else ""
    who = _list([group.label for group in groups]) if len(groups) <= 8 else f"{len(groups)} algorithms"
    classes = _number(len(federation["classes"]), "class", "es")
    apart = f", {held_out} of them held out of training" if held_out else ""
    return (
        f"<b>{escape(federation['data'])}</b>, {classes}, over {clients}{apart}. The model "
        f"{escape(model['name'])}{size} was trained with <b>{escape(who)}</b> for {_rounds(groups)}, "
        f"{_cohort(training['cohort'])}{_repeated(groups)}."
    )


def key_figures(groups: Sequence[Group], members: Sequence[Member]) -> str:
    """Return the key figures as cards: of the one algorithm, or of the best one in each."""
    runs = [run for group in groups for run in group.runs]
    shown = shown_columns(groups)
    left_out = {"best"} | ({"worst client"} if len(runs) == 1 else set())
    if len(runs) == 1 and any(column.title == "sigma_type" for column in shown):
        left_out.add("sigma_client")
    cards = [_figure_card(column, groups) for column in shown if column.title not in left_out]
    if len(runs) == 1:
        cards += _extremes(runs[0], members)
    spent = seconds(sum(run.seconds for run in runs))
    cards.append(_card("seconds", spent, "training" if len(runs) == 1 else f"training, {len(runs)} runs together"))
    across = next((number for number in (4, 3, 5) if len(cards) % number == 0), 4)
    return element("div", "".join(cards), class_="key-figures", style=f"--across:{across}")


def tests(members: Sequence[Member]) -> str:
    """Return a note on the clients with no or few test examples."""
    none = [escape(member.name) for member in members if not member.num_test]
    few = [f"{escape(member.name)} ({member.num_test})" for member in members if 0 < member.num_test < FEW]
    said = [f"<b>Not tested</b>, and so in no figure: {_some(none)}."] if none else []
    said += [f"<b>Few test examples</b>, so a client's figure may be chance: {_some(few)}."] if few else []
    return element("p", " ".join(said), class_="note") if said else ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _figure_card(column: Column, groups: Sequence[Group]) -> str:
    found = [(group, spread) for group in groups if (spread := group.spread(column.read)) is not None]
    title = {"accuracy": "mean accuracy", "held out": "held-out accuracy"}.get(column.title, column.title)
    if not found:
        return _card(title, "–", "no evaluation yet")
    pick = min if column.lower_is_better else max
    group, spread = pick(found, key=lambda pair: pair[1].mean)
    note = column.note or worst_domains(group)
    if len(groups) > 1:
        title = f"{'lowest' if column.lower_is_better else 'best'} {title}"
        note = group.label + ("" if column.note else f", on {note}")
    return _card(title, _percent(spread), note)


def _extremes(run: Run, members: Sequence[Member]) -> list[str]:
    trained = {member.name for member in members if not member.held_out}
    accuracies = {name: value for name, value in last_accuracies(run).items() if name in trained}
    if not accuracies:
        return []
    chosen = {"best client": max, "worst client": min}
    names = {title: pick(accuracies, key=lambda name: accuracies[name]) for title, pick in chosen.items()}
    return [_card(title, _percent(Spread.of([accuracies[name]])), name) for title, name in names.items()]


def _card(title: str, value: str, note: str) -> str:
    """Return one card; ``value`` is markup."""
    content = element("dt", escape(title)) + element("dd", value) + element("small", escape(note), title=note)
    return element("dl", content)


def _percent(spread: Spread) -> str:
    deviation = "" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.1f}<small>{deviation}%</small>"


def _rounds(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    planned = sorted({int(run.resolved["training"]["rounds"]) for run in runs})
    text = f"{planned[0]}" if len(planned) == 1 else f"{planned[0]} to {planned[-1]}"
    unfinished = [run for run in runs if len(run.rounds) < int(run.resolved["training"]["rounds"])]
    if len(runs) == 1 and unfinished:
        return f"{len(runs[0].rounds)} of {_number(planned[0], 'round')} so far"
    more = f" ({len(unfinished)} of {len(runs)} runs unfinished)" if unfinished else ""
    return f"{text} round{'s' * (text != '1')}{more}"


def _cohort(cohort: float | None) -> str:
    if cohort is None:
        return "all training clients in each"
    number = f"{cohort:.0%}" if isinstance(cohort, float) else f"{cohort:,}"
    return f"{number} of the training clients in each"


def _repeated(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    if counts == [1]:
        return ""
    times = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"; {times} runs each, figures are mean ± standard deviation over them"


def _federation(groups: Sequence[Group]) -> dict[str, Any]:
    federation: dict[str, Any] = groups[0].runs[0].resolved["federation"]
    return federation


def _number(count: int, noun: str, plural: str = "s") -> str:
    return f"{count:,} {noun}{plural if count != 1 else ''}"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

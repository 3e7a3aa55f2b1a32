"""Accuracy of each client and each domain: columns for one algorithm, dots for several, and a table of all."""

import math
import statistics
from collections.abc import Mapping, Sequence

from fedatlas.report.charts.colors import INK
from fedatlas.report.charts.markup import Scale, clipped, element, escape, grid, percent, svg, ticks, write
from fedatlas.report.charts.symbols import dot, held_out_tag, mark, said_of
from fedatlas.report.groups import Group, Spread, same_split
from fedatlas.report.members import Member, by_domain, domain_title, last_accuracies
from fedatlas.report.tables import heat_cell
from fedatlas.runs.run import Run

Accuracies = Mapping[str, Spread]
"""Each client's accuracy over a group's runs, by name."""
_PANELS_A_ROW = 6


def client_accuracies(group: Group, alike: Sequence[Run]) -> dict[str, Spread]:
    """Return each client's accuracy over those of the group's runs that have the same clients."""
    values: dict[str, list[float]] = {}
    for run in group.runs:
        if run in alike:
            for name, accuracy in last_accuracies(run).items():
                values.setdefault(name, []).append(accuracy)
    return {name: Spread.of(own) for name, own in values.items()}


def accuracy_by_group(groups: Sequence[Group]) -> dict[Group, Accuracies]:
    """Return each client's accuracy for each algorithm that was run on the first run's clients."""
    alike = same_split([run for group in groups for run in group.runs])
    found = {group: client_accuracies(group, alike) for group in groups}
    return {group: accuracies for group, accuracies in found.items() if accuracies}


def client_charts(members: Sequence[Member], accuracies: Mapping[Group, Accuracies]) -> str:
    """Return the accuracy of each client, by domain."""
    tested = {name for own in accuracies.values() for name in own}
    members = [member for member in members if member.name in tested]
    if len(accuracies) == 1:
        return columns(members, next(iter(accuracies.values())))
    return strips(members, accuracies)


def columns(members: Sequence[Member], accuracy: Accuracies) -> str:
    """Return one column per client, best first within its domain; held-out ones are outlines."""
    domains = by_domain(members)
    width = 1040.0
    gap = min(14.0, 260 / len(domains))
    step = min(46.0, (width - 40 - gap * len(domains)) / len(members))
    named = step >= 13
    bottom = 240.0
    height = bottom + (104 if named else 26)
    up = Scale(0, 1, bottom, 12)
    parts = grid([0, 0.2, 0.4, 0.6, 0.8, 1], up, 40, width, percent)
    x = 48.0
    for domain, own in domains:
        ordered = sorted(own, key=lambda member: -accuracy[member.name].mean)
        counted = [member for member in own if not member.held_out] or own
        mean = statistics.fmean(accuracy[member.name].mean for member in counted)
        for i, member in enumerate(ordered):
            parts.append(_column(member, accuracy[member.name], x + i * step, step, up))
            if named:
                place = f"translate({x + (i + 0.5) * step + 3:.1f} {bottom + 10}) rotate(-55)"
                text = escape(clipped(member.name, 14)) + element("title", escape(member.name))
                parts.append(element("text", text, transform=place, text_anchor="end", class_="tick"))
        end = x + len(own) * step
        parts.append(element("line", x1=x, x2=end, y1=up(mean), y2=up(mean), stroke=INK, class_="mean"))
        if len(own) < len(members) or domain is not None:
            name, room = domain_title(domain, members), int((end - x + gap) / 8)
            title = element("title", escape(f"{name}: mean over clients {mean:.1%}"))
            parts.append(element("rect", title, x=x, y=height - 21, width=end - x, height=3, fill=own[0].color))
            if room >= 4:
                label = clipped(f"{name} {mean:.0%}" if room >= len(name) + 4 else name, room)
                parts.append(write(label, x, height - 4, "name", title=name))
        x = end + gap
    return element("figure", svg(width, height, parts, "Accuracy of each client"))


def strips(members: Sequence[Member], accuracies: Mapping[Group, Accuracies]) -> str:
    """Return one panel per domain with one row per algorithm, in which each dot is a client."""
    domains = [(domain_title(domain, members), own) for domain, own in by_domain(members)]
    values = [spread.mean for own in accuracies.values() for spread in own.values()]
    places = ticks(min(values), max(values), 4)
    names = max(len(clipped(group.label, 20)) for group in accuracies)
    figures = ""
    rows = math.ceil(len(domains) / _PANELS_A_ROW)
    across = math.ceil(len(domains) / rows)
    for start in range(0, len(domains), across):
        row = domains[start : start + across]
        figures += _strip_row(row, accuracies, places, across, min(168.0, 18 + 7.4 * names))
    return element("figure", figures)


def _strip_row(
    domains: Sequence[tuple[str, list[Member]]],
    accuracies: Mapping[Group, Accuracies],
    places: Sequence[float],
    across: int,
    left: float,
) -> str:
    width, step, top, gap = 1040.0, 24.0, 34.0, 26.0
    bottom = top + step * len(accuracies)
    panel = (width - left) / across - gap
    parts = []
    for i, group in enumerate(accuracies):
        y = top + (i + 0.5) * step
        parts.append(element("line", x1=left, x2=left + len(domains) * (panel + gap) - gap, y1=y, y2=y, class_="grid"))
        parts.append(write(clipped(group.label, 20), left - 12, y + 4, "row-name", "end", group.label))
    for j, (domain, own) in enumerate(domains):
        start = left + j * (panel + gap) + 8
        scale = Scale(places[0], places[-1], start, start + panel - 8)
        parts.append(write(clipped(domain, int(panel / 8)), start, 12, "name"))
        parts.append(element("rect", x=start, y=18, width=panel - 8, height=3, fill=own[0].color))
        for value in places:
            parts.append(element("line", x1=scale(value), x2=scale(value), y1=top, y2=bottom, class_="grid"))
            parts.append(write(percent(value), scale(value), bottom + 14, anchor="middle"))
        for i, accuracy in enumerate(accuracies.values()):
            parts += _dots(own, accuracy, scale, top + (i + 0.5) * step)
    return svg(width, bottom + 22, parts, "Accuracy of each client by domain and algorithm")


def client_table(members: Sequence[Member], accuracies: Mapping[Group, Accuracies]) -> str:
    """Return the table of every client's accuracy, one column per algorithm, folded away."""
    values = [spread.mean for own in accuracies.values() for spread in own.values()]
    head = (
        element("th", "client", scope="col") + element("th", "train", scope="col") + element("th", "test", scope="col")
    )
    head += "".join(element("th", mark(group.color) + escape(group.label), scope="col") for group in accuracies)
    body = ""
    for member in members:
        name = mark(member.color) + escape(member.name) + held_out_tag(member)
        row = element("th", name, scope="row", title=member.domain)
        row += element("td", f"{member.num_train:,}") + element("td", f"{member.num_test:,}")
        for own in accuracies.values():
            row += heat_cell(own.get(member.name), min(values), max(values))
        body += element("tr", row)
    table = element("table", element("thead", element("tr", head)) + element("tbody", body), class_="heat")
    summary = element("summary", f"Every client in a table ({len(members):,})")
    return element("details", summary + element("div", table, class_="scroll"))


def _column(member: Member, spread: Spread, x: float, step: float, up: Scale) -> str:
    inset = min(3.0, step * 0.12)
    title = said_of(member, f"{spread.percent()} % of {member.num_test:,}")
    place = {"x": x + inset, "y": up(spread.mean), "width": step - 2 * inset, "height": up(0) - up(spread.mean)}
    style: dict[str, str | float] = {"fill": member.color}
    if member.held_out:
        outline: dict[str, str | float] = {"stroke": member.color, "stroke_dasharray": "3 2"} if step >= 8 else {}
        style |= {"fill_opacity": 0.2, **outline}
    return element("rect", title, **place, **style)


def _dots(members: Sequence[Member], accuracy: Accuracies, across: Scale, y: float) -> list[str]:
    tested = [member for member in members if member.name in accuracy]
    parts = [dot(m, across(accuracy[m.name].mean), y, 4, f"{accuracy[m.name].percent()} %") for m in tested]
    trained = [accuracy[m.name].mean for m in tested if not m.held_out]
    if trained:
        x = across(statistics.fmean(trained))
        parts.append(element("line", x1=x, x2=x, y1=y - 8, y2=y + 8, stroke=INK, class_="mean"))
    return parts

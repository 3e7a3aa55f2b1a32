"""The page of ``fedatlas check``: what was found, who is concerned, and what to do."""

from collections.abc import Sequence
from pathlib import Path

from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.report.charts.markup import element, escape
from fedatlas.report.page import document, write_page

MOST_ROWS = 1000
"""Clients in the table."""


def write_check(diagnosis: Diagnosis, path: Path) -> Path:
    """Write a diagnosis as one self-contained HTML page, and return its path."""
    return write_page(render_check(diagnosis), path)


def render_check(diagnosis: Diagnosis) -> str:
    """Return the page."""
    title = f"The clients of {diagnosis.data}"
    count = len({own.client for own in diagnosis.suspects})
    lead = f"{len(diagnosis.clients):,} clients in {max(diagnosis.groups) + 1:,} groups, {count:,} of them suspects."
    header = element("header", element("h1", escape(title)) + element("p", lead, class_="lead"))
    sections = [
        ("What to do", _commands(diagnosis)),
        ("Suspects", _people(diagnosis.suspects, "No client's data look wrong.")),
        ("Different, not wrong", _people(diagnosis.different, "No client stands out.")),
        ("How the clients differ", _shift(diagnosis)),
        ("The clients", _clients(diagnosis)),
    ]
    body = "".join(element("section", element("h2", name) + content) for name, content in sections)
    return document(title, f"{header}\n<main>\n{body}\n</main>")


def _commands(diagnosis: Diagnosis) -> str:
    rows = [(element("code", escape(own.command)), escape(own.why)) for own in diagnosis.advice]
    return _table(("command", "what for"), rows)


def _people(people: Sequence[Suspect], nobody: str) -> str:
    if not people:
        return element("p", nobody, class_="empty")
    rows = [(escape(own.client), escape(own.reason), escape(own.look)) for own in people]
    return _table(("client", "what was found", "what to look at"), rows)


def _shift(diagnosis: Diagnosis) -> str:
    rows = [
        (way.replace("_", " "), f"yes, {own.strength:.2f}" if own.found else "no", escape(own.evidence))
        for way, own in diagnosis.shift.items()
    ]
    remarks = "".join(element("p", f"Cannot be told: {escape(remark)}", class_="note") for remark in diagnosis.remarks)
    return _table(("in", "do they differ", "how that is known"), rows) + remarks


def _clients(diagnosis: Diagnosis) -> str:
    rows = [
        (escape(member.name), str(group), f"{member.examples:,}", f"{member.classes} of {diagnosis.num_classes}")
        for member, group in zip(diagnosis.clients, diagnosis.groups, strict=True)
    ]
    left = len(rows) - MOST_ROWS
    note = element("p", f"And {left:,} more.", class_="note") if left > 0 else ""
    heads = ("client", "group", "training examples", "classes")
    return _table(heads, rows[:MOST_ROWS], kind="figures") + note


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "words") -> str:
    head = element("tr", "".join(element("th", escape(title), scope="col") for title in heads))
    body = "".join(
        element("tr", element("th", first, scope="row") + "".join(element("td", cell) for cell in rest))
        for first, *rest in rows
    )
    table = element("table", element("thead", head) + element("tbody", body), class_=kind)
    return element("div", table, class_="scroll")

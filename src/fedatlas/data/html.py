"""Small tables for notebooks: plain HTML, escaped, without script or style sheet."""

from collections.abc import Mapping, Sequence
from html import escape


def facts_table(title: str, facts: Mapping[str, object]) -> str:
    """Return a titled table of names and values.

    >>> facts_table("Run", {"rounds": 3})
    '<table><caption>Run</caption><tr><th>rounds</th><td>3</td></tr></table>'
    """
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{_text(title)}</caption>{rows}</table>"


def rows_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, most: int = 12) -> str:
    """Return a table with a head; of many rows the first, and how many more there are.

    >>> rows_table(("client", "size"), [("a", 1), ("b", 2)], most=1)
    '<table><tr><th>client</th><th>size</th></tr><tr><td>a</td><td>1</td></tr></table><p>… and 1 more</p>'
    """
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows[:most])
    more = f"<p>… and {len(rows) - most:,} more</p>" if len(rows) > most else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _text(value: object) -> str:
    return escape(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))

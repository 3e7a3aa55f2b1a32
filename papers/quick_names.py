"""A table of ``--quick`` with the names of the data that were really used.

With ``--quick`` every training is on the embedded digits, whatever the paper's table is about. So the data sets' names
in its title, rows and columns become ``embedded digits``; the paper's numbers stay in their brackets.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from papers.tables import Table

STANDS_IN = "embedded digits"
SETS = ("CIFAR-100", "CIFAR-10", "Digit-Five", "DomainNet", "Digits", "PACS", "cifar10", "digit_five", "pacs")
_SET = re.compile(rf"\b(?:{'|'.join(SETS)})\b")


def named_as_run(table: Table) -> Table:
    """Return a table of ``--quick`` that names the embedded digits where the paper names its data."""
    seen: Counter[str] = Counter()
    rows = {}
    for title, cells in table.rows.items():
        name = _rename(title)
        seen[name] += 1
        rows[name if seen[name] == 1 else f"{name} ({seen[name]})"] = cells
    columns = tuple(map(_rename, table.columns))
    return replace(table, title=f"{_rename(table.title)}, --quick", columns=columns, rows=rows)


def _rename(text: str) -> str:
    return _SET.sub(STANDS_IN, text)

"""Puts the tables that scripts have written into a page of evidence, between their marks.

    python -m papers.report runs/client2vec docs/evidence/client2vec.md

A table lies in the folder as NAME.md; in the page it goes between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

from __future__ import annotations

import argparse
import re

from papers.options import existing, script

_MARKED = re.compile(r"<!-- begin ([a-z0-9-]+) -->\n.*?<!-- end \1 -->", re.DOTALL)


def filled(page: str, tables: dict[str, str]) -> str:
    """Return a page with its marked places filled; a place without a table keeps what it has."""

    def replacement(found: re.Match[str]) -> str:
        name = found[1]
        if name not in tables:
            return found[0]
        # The page has headings and settings of its own; what it takes are the table's lines.
        lines = [line for line in tables[name].splitlines() if line.startswith("|") and _measured(line)]
        return f"<!-- begin {name} -->\n" + "\n".join(lines) + f"\n<!-- end {name} -->"

    return _MARKED.sub(replacement, page)


def _measured(line: str) -> bool:
    """Tell whether a row has any number of ours; one that was not measured is left out."""
    cells = [cell.strip() for cell in line.strip("|").split("|")[1:]]
    return not cells or any(not cell.startswith("–") for cell in cells)


@script
def main() -> None:
    """Fill the page."""
    parser = argparse.ArgumentParser(description="Put measured tables into the page of evidence.")
    parser.add_argument("folder", type=existing, help="where scripts have written their tables (--out)")
    parser.add_argument("page", type=existing, help="the page to fill")
    given = parser.parse_args()
    tables = {file.stem: file.read_text(encoding="utf-8") for file in sorted(given.folder.glob("*.md"))}
    page = given.page.read_text(encoding="utf-8")
    given.page.write_text(filled(page, tables), encoding="utf-8")
    places = _MARKED.findall(page)
    print(f"{given.page}: {sum(name in tables for name in places)} of {len(places)} tables from {given.folder}")


if __name__ == "__main__":
    main()

"""Puts the tables that scripts have written into a page of evidence, between their marks.

    python -m papers.report runs/client2vec docs/evidence/client2vec.md

A script writes NAME.md into its folder. In the page its table goes between ``<!-- begin NAME -->`` and
``<!-- end NAME -->``; with ``<!-- begin whole NAME -->`` the whole text goes there.
"""

from __future__ import annotations

import argparse
import re

from papers.options import existing, script

_MARKED = re.compile(r"<!-- begin (whole )?([a-z0-9-]+) -->\n.*?<!-- end \2 -->", re.DOTALL)


def filled(page: str, tables: dict[str, str]) -> str:
    """Return a page with its marked places filled; a place without a table keeps what it has."""

    def replacement(found: re.Match[str]) -> str:
        whole, name = found[1] or "", found[2]
        if name not in tables:
            return found[0]
        lines = tables[name].splitlines()
        if not whole:
            # The page has its headings and settings; it takes the table's lines.
            lines = [line for line in lines if line.startswith("|") and _measured(line)]
        return f"<!-- begin {whole}{name} -->\n" + "\n".join(lines) + f"\n<!-- end {name} -->"

    return _MARKED.sub(replacement, page)


def _measured(line: str) -> bool:
    """Return whether a row has any number of ours; a row that was not measured is left out."""
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
    places = [name for _, name in _MARKED.findall(page)]
    print(f"{given.page}: {sum(name in tables for name in places)} of {len(places)} tables from {given.folder}")


if __name__ == "__main__":
    main()

"""What the pages tell of defaults, for tests that hold them against the code."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def told(page: str, section: str) -> dict[str, str]:
    """Return the defaults in a section's table of name, default and meaning; a row may tell of several settings."""
    text = (DOCS / page).read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    defaults = {}
    for names, values in re.findall(r"^\| (`.*?`) \| ?(.*?) ?\|", text, re.MULTILINE):
        titles = [name.strip("` ") for name in names.split(",")]
        several = values.split(", ")
        defaults |= dict(zip(titles, several if len(several) == len(titles) else [values] * len(titles), strict=True))
    return defaults


def read(text: str) -> object:
    """Return a default of a page, numbers as such: they are written in several ways, and truth in two."""
    if text in ("`True`", "`False`"):
        return text.strip("`").lower()
    try:
        return float(text)
    except ValueError:
        return text


def as_told(value: object) -> object:
    """Return a default of the code as ``read`` gives it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value}`" if isinstance(value, str) else value

"""The settings of a config as lines of a list and as the table in docs/configs.md."""

from __future__ import annotations

import json
from typing import Any

from fedatlas.config.schema import SECTIONS, SETTINGS, Setting


def settings_lines() -> dict[str, str]:
    """Return a line for each key: its meaning and its default."""
    return {key: _line(one) for key, one in SETTINGS.items()}


def settings_table() -> str:
    """Return the table of docs/configs.md, in Markdown.

    >>> print(settings_table().splitlines()[0])
    | section | key | default | meaning |
    """
    rows = ["| section | key | default | meaning |", "|---|---|---|---|"]
    for section, keys in {"": [SETTINGS["seed"]], **SECTIONS}.items():
        title = f"`[{section}]`" if section else ""
        if not keys:
            rows.append(f"| {title} | a name | | options by algorithm, or under your own names, for `compare` |")
        for i, one in enumerate(keys):
            meaning = f"{one.help} ({one.words})" if "Literal" in str(one.kind) else one.help
            rows.append(f"| {title if i == 0 else ''} | `{one.name}` | {_shown(one.default)} | {meaning} |")
    return "\n".join(rows)


def _line(one: Setting) -> str:
    return one.help if one.default is None else f"{one.help}; default {_text(one.default)}"


def _shown(default: Any) -> str:
    return "" if default is None else f"`{_text(default)}`"


def _text(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default)

"""How data are read that another machine or a new client brings: as the config's own, as far as its columns go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedatlas.config.config import Config
from fedatlas.data.loading.catalogue import DATASETS, SIZE, TASK, canonical_name, kind_of
from fedatlas.data.loading.cells import table_columns

NPZ = ".npz"
FEW = ("client", "domain", "id")
"""The columns that the table of one client need not have."""


def reading_elsewhere(config: Config | None, path: str | Path) -> dict[str, Any]:
    """Return how a file or a folder of pictures is read that is not the config's own; none of its texts are left out.

    A table that comes with the package says how others like it are read.
    """
    kind = kind_of(path)
    if config is None or kind not in ("folder", "table", NPZ):
        return {}
    source = canonical_name(config.values["data"]["source"])
    given = {**(DATASETS[source].reading if source in DATASETS else {}), **config.reading()}
    of_pictures = {key: given[key] for key in (SIZE, TASK) if key in given and (key == TASK or kind == "folder")}
    if kind != "table":
        return of_pictures
    options = {key: value for key, value in given.items() if key not in (SIZE, "fraction")}
    if not {*FEW, "drop"} & options.keys():
        return options
    return _that_exist(options, table_columns(path))


def _that_exist(options: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return the options without columns that the table need not have, and lacks."""
    if "text" in columns or "text" in options:
        return options
    kept = {key: value for key, value in options.items() if key not in FEW or value is None or value in columns}
    return {**kept, **({"drop": [name for name in kept["drop"] if name in columns]} if "drop" in kept else {})}

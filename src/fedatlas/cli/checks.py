"""The checks that a command makes before it loads torch: names, options and files that must be there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedatlas.config.config import Config
from fedatlas.data.loading.catalogue import check_source
from fedatlas.errors import UsageError


def read_config(path: Path | None, settings: Sequence[str] | None, **sections: Any) -> Config:
    """Return a config whose names are known and whose files are there; its ``check`` is left to the caller."""
    config = Config.read(path, settings or (), **sections)
    check_source(config.values["data"]["source"])
    if (file := config.values["atlas"]["file"]) is not None:
        check_atlas(Path(file))
    return config


def check_atlas(path: Path) -> None:
    """Raise an error if the file of an atlas is missing."""
    if not path.exists():
        raise UsageError(
            f"there is no atlas at {path}. Make one there: `fedatlas map --to FILE`.", code="file-missing", path=path
        )


def default_folder(config: Config) -> Path:
    """Return the folder of a run where none is given."""
    source = Path(str(config.values["data"]["source"])).stem
    return Path("runs") / f"{source}-{run_name(config)}"


def run_name(config: Config) -> str:
    """Return a name for a run's folder: the algorithm's, what an atlas adds to it, and the seed."""
    values = config.values
    chosen = values["atlas"]
    given = chosen["file"] is not None or chosen["make"] is not None
    atlas = "-groups" if "group" in chosen["use"] else "-atlas" if given else ""
    return f"{short_name(values['algorithm']['name'])}{atlas}-{values['seed']}"


def short_name(algorithm: str) -> str:
    """Return an algorithm's name for folders: of a user's recipe the function's."""
    return algorithm.rpartition(":")[2]

"""Templates of a Flower app: its pyproject, the two apps, and the run's config."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from fedatlas.config.config import Config
from fedatlas.errors import RunFolderError, UsageError

PACKAGE, RUN = "fedatlas_app", "run.toml"

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = "1.0.0"
description = {description}
dependencies = ["fedatlas[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedatlas"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
folder = {folder}
settings = ""
task = "train"
"""

_APP = '''\
"""The {side} of the run that {run} describes."""

from pathlib import Path

from fedatlas.flower import make_{side}_app

app = make_{side}_app(Path(__file__).with_name("{run}"))
'''


def app_code() -> dict[str, str]:
    """Return all Python files of an app, by their names: an app of fedatlas has no other code."""
    apps = {f"{PACKAGE}/{side}_app.py": _APP.format(side=side, run=RUN) for side in ("server", "client")}
    return {f"{PACKAGE}/__init__.py": "", **apps}


def app_config(folder: Path, changes: Sequence[str] = ()) -> Config:
    """Return the config of an app, with a run's changes."""
    file = folder / PACKAGE / RUN
    if not file.exists():
        raise UsageError(
            f"{folder} is not an app: there is no {file}. Write one with `fedatlas flower init {folder}`.",
            code="app-missing",
            path=str(folder),
        )
    return Config.load(file, changes)


def write_app(folder: Path | str, config: Config, *, run_folder: Path | str | None = None) -> Path:
    """Write a Flower app that trains by a config, and return the app's folder.

    ``run_folder`` is the run's folder on the server; a relative path starts at the SuperLink's working directory.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(
            f"{folder} is not empty; choose another folder for the app.", code="folder-not-empty", path=str(folder)
        )
    package = folder / PACKAGE
    package.mkdir(parents=True)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "app"
    algorithm = config.values["algorithm"]["name"]
    (folder / "pyproject.toml").write_text(
        _PYPROJECT.format(
            name=json.dumps(name),
            description=json.dumps(f"{algorithm} by fedatlas"),
            package=PACKAGE,
            folder=json.dumps(str(run_folder or f"runs/{name}")),
        ),
        encoding="utf-8",
    )
    (package / RUN).write_text(config.to_toml(), encoding="utf-8")
    for name, text in app_code().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder

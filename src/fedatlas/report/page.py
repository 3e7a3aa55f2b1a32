"""The page: one HTML file with its data, its script and its style, that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedatlas.errors import RunFolderError
from fedatlas.report.block import Subject, data_block
from fedatlas.report.packing import embed
from fedatlas.runs.files import atomic_write
from fedatlas.runs.run import Run

MAIN = "main"
"""The module that all others are imported from."""
_IMPORT = re.compile(r"^import (\{[^}]*\}) from \"\./([a-z]+)\.js\";$", re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


def write_page(path: str | os.PathLike[str], *, share: bool = False, **about: Any) -> Path:
    """Write one self-contained HTML page, and return its path; raise RunFolderError if a run's file was altered.

    Args:
        path: the file.
        share: leave out names, pictures, paths and groups of fewer than five clients.
        about: what the page is about, as ``Subject`` takes it: ``runs``, ``federation``, ``atlas``, ``diagnosis``,
            ``given``, ``config``, ``title``.
    """
    target, subject = Path(path), Subject(**about)
    for run in subject.runs:
        run.verify()
    page = render(subject, share=share)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot make {target.parent}: {error.strerror}. Write the report elsewhere.",
            code="file-unwritable",
            path=str(target.parent),
        ) from error
    atomic_write(target, page.encode("utf-8", errors="replace"))
    return target


def write_report(
    runs: Sequence[Run], path: str | os.PathLike[str], *, title: str | None = None, share: bool = False
) -> Path:
    """Write one self-contained HTML page about a run, or comparing several on the same data, and return its path.

    Runs of one algorithm under the same settings (several seeds or folds) become one row; a run that is given twice
    counts once.
    """
    return write_page(path, runs=runs, title=title, share=share)


def render(subject: Subject, *, share: bool = False) -> str:
    """Return the page."""
    block = data_block(subject, share=share)
    script, style = join_scripts(), _read("page.css")
    policy = f"default-src 'none'; img-src data:; script-src '{_digest(script)}'; style-src '{_digest(style)}'"
    parts = {
        "policy": policy,
        "title": html.escape(str(block["title"])),
        "style": style,
        "data": embed(block),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def join_scripts() -> str:
    """Return the modules as one script: each a function that returns its exports, as inline modules cannot import."""
    return "\n".join(_as_function(name, source) for name, source in _modules(MAIN).items())


def _modules(name: str, found: dict[str, str] | None = None) -> dict[str, str]:
    """Return the sources of a module and of all that it imports, each after those that it imports."""
    found = {} if found is None else found
    source = _read(f"{name}.js")
    for _, other in _IMPORT.findall(source):
        if other not in found:
            _modules(other, found)
    found[name] = source
    return found


def _as_function(name: str, source: str) -> str:
    exports = ", ".join(found[1] for found in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2_module;", source))
    return f"const {name}_module = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _read(name: str) -> str:
    return resources.files("fedatlas.report").joinpath("browser", name).read_text(encoding="utf-8")

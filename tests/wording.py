"""The wording of all errors as one table, read from the source: ``python tests/wording.py`` writes docs/errors.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
HEAD = """# Errors

Every error that fedatlas raises on purpose is a `fedatlas.FedatlasError` with a `code`, which stays when the wording
changes, and `fields`, the values that the message shows. `{...}` stands for a value.

| code | kind | message |
|---|---|---|
"""


class Row(NamedTuple):
    """One place that makes an error."""

    code: str
    kind: str
    message: str


def rows() -> list[Row]:
    """Return every error with a code, by code."""
    found: set[Row] = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        found |= set(_rows(ast.parse(path.read_text(encoding="utf-8"))))
    return sorted(found)


def page() -> str:
    """Return the text of the page."""
    lines = (f"| `{row.code}` | {row.kind} | {row.message.replace('|', chr(92) + '|')} |" for row in rows())
    return HEAD + "\n".join(lines) + "\n"


def without_code() -> list[str]:
    """Return the places that make an error without a code."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if _makes_error(node) and not any(key.arg in ("code", None) for key in node.keywords):  # type: ignore[attr-defined]
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    return found


KINDS = ("UsageError", "DataError", "TrainingError", "RunFolderError", "AlgorithmCheckError", "FedatlasError")
KINDS += ("SamplingError", "UncapturableError", "LostMemoryError", "LaunchError", "BadReplyError", "PolicyError")


def _makes_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS


def _rows(tree: ast.AST) -> Iterator[Row]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        codes = [key.value for key in node.keywords if key.arg == "code"]
        for code in codes:
            if isinstance(code, ast.Constant) and isinstance(code.value, str) and code.value and node.args:
                kind = node.func.id if _makes_error(node) else "FedatlasError"
                yield Row(code.value, kind, " ".join(_template(node.args[0]).split()))


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{node.value.id}}}" if isinstance(node.value, ast.Name) else "{...}"
    if isinstance(node, ast.BinOp):
        return _template(node.left) + _template(node.right)
    return "{...}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

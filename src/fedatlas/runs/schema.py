"""The files of a run's folder, read and checked."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from fedatlas.errors import RunFolderError

RESOLVED = "resolved.json"
ALTERED = "the run's folder was altered. Restore the file, or train again."
NUMBER = (int, float)
_CLIENT = {"name": object, "domain": object, "held_out": bool, "num_train": int, "num_test": int, "label_counts": list}
_SETTINGS = {
    "federation": {
        **dict.fromkeys(("data", "kind", "partition", "fingerprint"), str),
        "classes": list,
        "form": {"shape": [int], "vocabulary": list, "mean": [NUMBER], "std": [NUMBER]},
        "clients": [_CLIENT],
    },
    "model": {"name": str, "options": dict},
    "algorithm": {"name": str, "optimizer": dict},
    "training": {"rounds": int, "batch_size": int},
    "seeds": dict.fromkeys(("partition", "model", "sampling", "batches"), int),
    "machine": dict,
}
_LINES = {
    "rounds.jsonl": {"round": int, "evaluation?": dict, "held_out?": dict},
    "clients.jsonl": {"round": int, "client": object, "accuracy?": NUMBER},
    "timings.jsonl": {"round": int, "train": NUMBER},
}
_ADAPTED = {
    "client": object,
    "domain": object,
    "origin": str,
    "round": int,
    "embedding": (list, type(None)),
    **dict.fromkeys(("num_examples", "num_steps", "num_tuned"), int),
    **dict.fromkeys(("seconds", "accuracy_before", "accuracy_after"), NUMBER),
}
"""The form of each file, as far as it is relied on: a type or several, or by key (with ? it may lack) or in a list."""


def check_run(folder: Path) -> None:
    """Raise an error if a folder holds no run."""
    if not (folder / RESOLVED).exists():
        raise RunFolderError(
            f"{folder} holds no run: there is no {RESOLVED}. Give a folder that `train` made.",
            code="run-missing",
            path=str(folder),
        )


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a run."""
    settings: dict[str, Any] = _read_json(path)
    if wrong := misfit(settings, _SETTINGS):
        raise RunFolderError(f"{path} holds no run's settings: {wrong}; {ALTERED}", code="file-altered", path=str(path))
    return settings


def read_adapted(path: Path) -> list[dict[str, Any]]:
    """Read what is known of clients that were brought in later."""
    records: list[dict[str, Any]] = _read_json(path) if path.exists() else []
    if wrong := misfit(records, [_ADAPTED]):
        raise RunFolderError(
            f"{path} is not a list of adapted clients: {wrong}; the run's folder was altered. Remove the file.",
            code="file-altered",
            path=str(path),
        )
    return records


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a record; a last line that was cut short by a kill is not part of it."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise RunFolderError(
                f"{path}, line {number} is not JSON ({error}); {ALTERED}",
                code="file-altered",
                path=str(path),
                line=number,
            ) from error
        if wrong := misfit(entry, _LINES[path.name]):
            raise RunFolderError(
                f"{path}, line {number} is not a record: {wrong}; {ALTERED}",
                code="file-altered",
                path=str(path),
                line=number,
            )
        found.append(entry)
    return found


def misfit(value: Any, form: Any, where: str = "it") -> str | None:
    """Return what about a value is not of a form, in words; None where it fits."""
    kind = dict if isinstance(form, dict) else list if isinstance(form, list) else form
    # To Python alone True is an int.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, NUMBER)):
        text = json.dumps(value)
        return f"{where} is {text if len(text) <= 40 else f'a {type(value).__name__}'}, not {_told(kind)}"
    if isinstance(form, list):
        inside = ((item, form[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next((wrong for one in inside if (wrong := misfit(*one))), None)
    for key, inner in form.items() if isinstance(form, dict) else ():
        name = key.removesuffix("?")
        if name not in value:
            if name == key:
                return f"{where} lacks {name!r}"
        elif wrong := misfit(value[name], inner, name if where == "it" else f"{where}.{name}"):
            return wrong
    return None


def _told(kind: Any) -> str:
    words: dict[Any, str] = {dict: "a table", list: "a list", str: "a text", int: "a whole number"}
    words |= {bool: "true or false", NUMBER: "a number"}
    return words[kind] if kind in words else " or ".join(words.get(one, "null") for one in kind)


def _read_json(path: Path) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunFolderError(
            f"{path} is not valid JSON ({error}); {ALTERED}", code="file-altered", path=str(path)
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}.", code="file-unreadable", path=str(path)
        ) from error
    return content


def own_name(path: Path, trained: str) -> str | None:
    """Return the name from [algorithms] under which a config trains, if any; ``trained`` is the algorithm's name."""
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a run from Python has none, and nothing else that is shown needs one
        return None
    name = str(_table(config, "algorithm").get("name"))
    if "name" not in _table(_table(config, "algorithms"), name):
        return None
    # An algorithm that uses an atlas over a base is named "outer+base", or "outer" over FedAvg.
    outer = trained.partition("+")[0]
    return f"{outer}+{name}" if _table(config, "atlas").keys() & {"file", "make"} else name


def _table(tree: dict[str, Any], key: str) -> dict[str, Any]:
    found = tree.get(key)
    return found if isinstance(found, dict) else {}

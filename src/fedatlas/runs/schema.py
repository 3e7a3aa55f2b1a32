"""The files of a run's folder, read and checked."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fedatlas.errors import RunFolderError
from fedatlas.parts.checks import describe_kind, find_misfit
from fedatlas.runs.files import check_plain
from fedatlas.runs.manifest import CHECKPOINTS, Claim, Manifest, altered

RESOLVED = "resolved.json"
ALTERED = "the run's folder was altered. Restore the file, or train again."


class _Client(TypedDict):
    name: Any
    domain: Any
    type: NotRequired[str]
    held_out: bool
    num_train: int
    num_test: int
    label_counts: list[int]


class _Form(TypedDict):
    shape: list[int]
    vocabulary: list[Any]
    mean: list[float]
    std: list[float]
    preparation: NotRequired[list[Any]]


class _Federation(TypedDict):
    data: str
    kind: str
    partition: str
    fingerprint: str
    classes: list[Any]
    form: _Form
    clients: list[_Client]


class _Model(TypedDict):
    name: str
    options: dict[str, Any]


class _Algorithm(TypedDict):
    name: str
    optimizer: dict[str, Any]


class _Training(TypedDict):
    rounds: int
    batch_size: int
    least_batch: NotRequired[int]


class _Seeds(TypedDict):
    partition: int
    model: int
    sampling: int
    batches: int


class _Settings(TypedDict):
    """``resolved.json``, as far as it is relied on; so are the others."""

    federation: _Federation
    model: _Model
    algorithm: _Algorithm
    training: _Training
    seeds: _Seeds
    machine: dict[str, Any]


class _RoundLine(TypedDict):
    round: int
    evaluation: NotRequired[dict[str, Any]]
    held_out: NotRequired[dict[str, Any]]


class _ClientLine(TypedDict):
    round: int
    client: Any
    accuracy: NotRequired[float]
    weight: NotRequired[float | None]
    num_tested: NotRequired[int]


class _TimingLine(TypedDict):
    round: int
    train: float


class _Adapted(TypedDict):
    client: Any
    domain: Any
    origin: str
    round: int
    embedding: list[Any] | None
    num_examples: int
    num_steps: int
    num_tuned: int
    seconds: float
    accuracy_before: NotRequired[float]
    accuracy_after: NotRequired[float]


_SECTIONS = ("algorithm", "algorithms", "atlas", "data", "sharing")
_LINES = {"rounds.jsonl": _RoundLine, "clients.jsonl": _ClientLine, "timings.jsonl": _TimingLine}


def check_run(folder: Path) -> None:
    """Raise an error if a folder holds no run, or something in it leads elsewhere."""
    check_plain(folder, folder / CHECKPOINTS)
    if not (folder / RESOLVED).exists():
        raise RunFolderError(
            f"{folder} holds no run: there is no {RESOLVED}. Give a folder that `train` made.",
            code="run-missing",
            path=str(folder),
        )


def read_settings(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Read the settings of a run."""
    settings: dict[str, Any] = _read_json(path, manifest)
    if wrong := _fault(settings, _Settings):
        raise RunFolderError(f"{path} holds no run's settings: {wrong}; {ALTERED}", code="file-altered", path=str(path))
    if len({len(client["label_counts"]) for client in settings["federation"]["clients"]}) > 1:
        raise RunFolderError(
            f"{path} holds no run's settings: clients count different numbers of classes; {ALTERED}",
            code="file-altered",
            path=str(path),
        )
    return settings


def read_adapted(path: Path, manifest: Manifest) -> list[dict[str, Any]]:
    """Read the records of clients that joined later."""
    if not path.exists() and path.name not in manifest.files:
        return []
    records: list[dict[str, Any]] = _read_json(path, manifest)
    if wrong := _fault(records, list[_Adapted]):
        raise RunFolderError(
            f"{path} is not a list of adapted clients: {wrong}; the run's folder was altered. Remove the file.",
            code="file-altered",
            path=str(path),
        )
    return records


def read_lines(path: Path, manifest: Manifest, *, whole: bool) -> list[dict[str, Any]]:
    """Read a record; lines after the checkpoint, and a last one that a kill cut short, are those of a running run.

    With ``whole`` the run has all its rounds, so there may be no line after the checkpoint.
    """
    manifest.check_record(path.name, path)
    if not path.exists():
        return []
    content = path.read_bytes()
    claim = manifest.records.get(path.name, Claim(0, None))
    if whole and len(content) > claim.bytes and claim.sha256 is not None:
        raise altered(path, f"it is longer than the run made it ({len(content)} bytes in place of {claim.bytes})")
    found: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise line_fault(path, number, f"is not JSON ({error})") from error
        if wrong := _fault(entry, _LINES[path.name]):
            raise line_fault(path, number, f"is not a record: {wrong}")
        if not math.isfinite(entry.get("train", 0)):
            raise line_fault(path, number, f"is not a record: it took {entry['train']} seconds")
        after = found[-1]["round"] if found else 0
        # A round has a line for each client that took part; one in which nobody answers has none.
        follows = entry["round"] >= max(after, 1) if path.name == "clients.jsonl" else entry["round"] == after + 1
        if not follows:
            raise line_fault(path, number, f"is of round {entry['round']}, after round {after}")
        found.append(entry)
    return found


def line_fault(path: Path, number: int, wrong: str) -> RunFolderError:
    """Return the error for a line of a record."""
    return RunFolderError(f"{path}, line {number} {wrong}; {ALTERED}", code="file-altered", path=str(path), line=number)


def _fault(value: Any, kind: Any) -> str | None:
    """Return what about a value does not fit a kind, in words; None if it fits."""
    wrong = find_misfit(value, kind, "")
    if wrong is None:
        return None
    if wrong.kind is None:
        table, _, name = wrong.where.rpartition(".")
        return f"{_named(table)} lacks {name!r}"
    text = json.dumps(wrong.value)
    shown = text if len(text) <= 40 else f"a {type(wrong.value).__name__}"
    return f"{_named(wrong.where)} is {shown}, not {describe_kind(wrong.kind)}"


def _named(where: str) -> str:
    return f"it{where}" if not where or where.startswith("[") else where


def _read_json(path: Path, manifest: Manifest) -> Any:
    try:
        text = path.read_bytes()
        manifest.check(path.name, text, path)
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{path} is not valid JSON ({error}); {ALTERED}", code="file-altered", path=str(path)
        ) from error
    except OSError as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(
            f"cannot read {path}: {error.strerror}.", code="file-unreadable", path=str(path)
        ) from error
    return content


def read_config_file(path: Path) -> dict[str, Any]:
    """Return the sections of a run's config; none for a run from Python, which has no config."""
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        wrong = next((key for key in _SECTIONS if not isinstance(config.get(key, {}), dict)), None)
        if wrong is not None:
            raise ValueError(f"{wrong} is not a section")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{path} is not a config ({error}); {ALTERED}", code="file-altered", path=str(path)
        ) from error
    return config


def own_name(path: Path, trained: str) -> str | None:
    """Return the name from [algorithms] under which a config trains, if any; ``trained`` is the algorithm's name."""
    try:
        config = read_config_file(path)
    except RunFolderError:  # a name is shown by many; what needs the config says what is wrong with it
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


SHARES = ("accuracy", "iou")
"""Main metrics between 0 and 1, which are shown in percent."""


def figure(metric: str, value: float) -> str:
    """Return a metric's value as text: a share as percent, another number with four digits.

    >>> figure("accuracy", 0.5), figure("rmse", 61.23456)
    ('50.0%', '61.23')
    """
    return f"{value:.1%}" if metric in SHARES else f"{value:.4g}"

"""Whose code a node runs. A run brings an app, an archive with Python files, and Flower would run whatever they hold.

A node that fedatlas starts finds a program named ``flwr-clientapp`` before Flower's: it is Flower's (starter.py), with
a look into the archive before it is unpacked. The Python files must be those that ``fedatlas flower init`` writes, to
the letter; all else in an app is data, which the policy judges. Nothing that takes time is imported: it runs for every
message.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedatlas.flower.node.starter import program_text
from fedatlas.flower.version import check_flower
from fedatlas.runs.files import check_private

PLACE = "FEDATLAS_NODE"
"""The variable with the node's policy, its memory and a folder for marks, as JSON."""
OWN = "fedatlas"
DATA = (".toml", ".md", ".yaml", ".yml", ".json", ".jsonl")
LOOK = 0.05
"""Seconds between two looks for a part of a message that the SuperNode still fetches."""
MOST_BYTES = 1 << 26
"""The most bytes of an app that are looked at."""


def install_program(folder: Path, door: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Write the program into a folder, and return the variables with which a SuperNode finds it.

    ``door`` is the socket of the starter that the program hands over to.
    """
    program = folder / "bin" / "flwr-clientapp"
    program.parent.mkdir(mode=0o700)
    program.write_text(program_text(door, __name__), encoding="utf-8")
    program.chmod(0o700)
    place = {"policy": settings.get("policy"), "memory": settings.get("memory"), "marks": str(folder)}
    path = os.pathsep.join((str(program.parent), os.environ.get("PATH", "")))
    return {"PATH": path, PLACE: json.dumps(place)}


def main() -> None:
    """Be Flower's ``flwr-clientapp``, but look at an app before it is unpacked."""
    check_flower()
    # Flower has no open door for this; the name is that of flwr 1.41 and 1.42.
    runtime = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    install = runtime.install_from_fab

    def install_checked(content: bytes, *arguments: Any, **options: Any) -> Any:
        check_app(content, json.loads(os.environ[PLACE]))
        return install(content, *arguments, **options)

    runtime.install_from_fab = install_checked  # type: ignore[attr-defined]
    # The process is up before the SuperNode has the whole message: it looks again soon, not after 1, 2, 4 seconds.
    pull = runtime.pull_and_inflate_object_from_tree
    soon = {"initial_backoff": LOOK, "backoff_cap": LOOK, "max_tries_per_object": None}
    runtime.pull_and_inflate_object_from_tree = partial(pull, **soon)  # type: ignore[attr-defined]
    importlib.import_module("flwr.supernode.cli").flwr_clientapp()


def check_app(content: bytes, place: Mapping[str, Any]) -> None:
    """Raise PolicyError if the node's policy does not allow an app; the audit log has a line about it then."""
    if place["policy"]:
        check_private(Path(place["policy"]))
    policy = Path(place["policy"]).read_bytes() if place["policy"] else b""
    mark = Path(place["marks"]) / f"app-{hashlib.sha256(policy + content).hexdigest()}"
    if mark.exists():
        return
    fault = app_fault(content, tomllib.loads(policy.decode()).get("apps", [OWN]))
    if fault is None:
        mark.touch()
        return
    from fedatlas.flower.node.audit import AUDIT, AuditLog
    from fedatlas.flower.node.policy import PolicyError

    name = hashlib.sha256(content).hexdigest()
    if place["memory"]:
        entry = {"run": "", "round": None, "request": "app", "answer": "refused", "why": fault, "app": name}
        AuditLog(Path(place["memory"]) / AUDIT).add(entry)
    raise PolicyError(
        f'against the policy of this node: {fault}. The node\'s owner can allow this app with apps = ["{name}"]',
        code="against-policy",
        kind="app",
        got=name,
    )


def app_fault(content: bytes, allowed: Sequence[str]) -> str | None:
    """Return why an app may not run here, or None."""
    if hashlib.sha256(content).hexdigest() in allowed:
        return None
    if OWN not in allowed:
        return "no app is allowed but those that are named by their hashes"
    from fedatlas.flower.deploy.template import PACKAGE, app_code

    code = app_code()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if sum(member.file_size for member in members) > MOST_BYTES:
                return "the app is too large"
            for member in members:
                name = member.filename
                if name in code and archive.read(member) == code[name].encode():
                    continue
                if name.endswith(DATA) or name in ("LICENSE", ".info/CONTENT"):
                    continue
                return f"the app brings code of its sender ({name[:80]})"
            described = tomllib.loads(archive.read("pyproject.toml").decode())
            entry = described["tool"]["flwr"]["app"]["components"]["clientapp"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, OSError, RecursionError, RuntimeError) as error:
        return f"the app cannot be read ({type(error).__name__})"
    return None if entry == f"{PACKAGE}.client_app:app" else f"the app begins at {str(entry)[:80]!r}"

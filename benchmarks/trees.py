"""Versions of this repository side by side: each is a folder with the source of one commit."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Tree:
    """The source of one version, and how a process runs it."""

    name: str
    folder: Path

    def environment(self, *more_paths: Path) -> dict[str, str]:
        """Return the environment of a process that imports this version's fedatlas."""
        paths = [str(self.folder / "src"), *map(str, more_paths)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def check(self) -> None:
        """Exit if a process of this version would import another version's fedatlas."""
        code = "import importlib.util; print(importlib.util.find_spec('fedatlas').origin)"
        done = subprocess.run(
            [sys.executable, "-c", code], env=self.environment(), cwd=self.folder, capture_output=True, text=True
        )
        found = Path(done.stdout.strip() or ".").resolve()
        if not found.is_relative_to(self.folder.resolve()):
            raise SystemExit(f"{self.name}: Python imports fedatlas from {found}, not from {self.folder}.")


def check_out(commit: str, folder: Path) -> Tree:
    """Write a commit's files into a folder, and leave the repository as it is."""
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True)
    if done.returncode:
        raise SystemExit(f"git cannot archive {commit!r}: {done.stderr.decode().strip()}")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Tree(commit, folder)

"""The claims of a run's manifest, for tests that change a run's files on purpose."""

from dataclasses import replace
from pathlib import Path

from fedatlas.runs import CHECKPOINTS, Manifest, claim_of, read_manifest


def write_manifest(folder: Path) -> None:
    """Write a manifest that claims no file, as a run has before it writes any."""
    (folder / CHECKPOINTS).mkdir(exist_ok=True)
    Manifest().write(folder / CHECKPOINTS)


def claim_again(folder: Path) -> None:
    """Let the manifest claim what a run's files hold now, as if the run had written it."""
    manifest = read_manifest(folder / CHECKPOINTS)
    files = {name: claim_of((folder / name).read_bytes()) for name in manifest.files}
    records = {name: claim_of((folder / name).read_bytes()) for name in manifest.records}
    replace(manifest, files=files, records=records).write(folder / CHECKPOINTS)

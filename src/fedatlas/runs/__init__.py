"""The files of a run's folder."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.runs.files import Disk, atomic_write, inside, private_folder
    from fedatlas.runs.manifest import CHECKPOINTS, Manifest, claim_of, read_manifest
    from fedatlas.runs.previews import PORTRAITS
    from fedatlas.runs.run import ATLAS, CHECK, CONFIG, Run
    from fedatlas.runs.schema import RESOLVED
    from fedatlas.runs.writer import RunFolder, RunWriter, check_same

__all__ = [
    "ATLAS",
    "CHECK",
    "CHECKPOINTS",
    "CONFIG",
    "PORTRAITS",
    "RESOLVED",
    "Disk",
    "Manifest",
    "Run",
    "RunFolder",
    "RunWriter",
    "atomic_write",
    "check_same",
    "claim_of",
    "inside",
    "private_folder",
    "read_manifest",
]

__getattr__, __dir__ = lazy_exports(__name__)

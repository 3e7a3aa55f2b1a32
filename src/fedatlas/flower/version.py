"""Which Flower fedatlas runs on. A node replaces functions inside Flower, so another version may do something else."""

from __future__ import annotations

from importlib import metadata

from fedatlas.errors import UsageError

WANTED = ("1.41", "1.42")
"""The files inside Flower that fedatlas uses are the same in these."""
REQUIREMENT = "flwr>=1.41,<1.43"


def check_flower() -> None:
    """Raise UsageError if Flower is missing, or is not the version that fedatlas knows the inside of."""
    try:
        found = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise UsageError(
            "this needs the extra flower. Install it: pip install 'fedatlas[flower]'.",
            code="extra-missing",
            extra="flower",
        ) from None
    if ".".join(found.split(".")[:2]) not in WANTED:
        raise UsageError(
            f"fedatlas runs on flwr {' or '.join(WANTED)}, and flwr {found} is installed: what a node may run is "
            "checked inside Flower, which differs between versions. Install one of these: "
            f"pip install '{REQUIREMENT}'.",
            code="package-version",
            package="flwr",
            got=found,
            wanted=REQUIREMENT,
        )

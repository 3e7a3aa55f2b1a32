"""Which Flower fedatlas runs on. A node replaces functions inside Flower, so another version may do something else."""

from __future__ import annotations

from importlib import metadata

from fedatlas.errors import UsageError

WANTED = "1.41"


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
    if found.split(".")[:2] != WANTED.split("."):
        raise UsageError(
            f"fedatlas runs on flwr {WANTED}, and flwr {found} is installed: what a node may run is checked inside "
            f"Flower, which differs between versions. Install the right one: pip install 'flwr~={WANTED}.0'.",
            code="package-version",
            package="flwr",
            got=found,
            wanted=WANTED,
        )

"""Settings of runs that 0.1.0 made, as they are written today, so that such runs go on."""

from collections.abc import Mapping
from typing import Any

RENAMED = {"PlainSGD": "SGD"}
"""Parts that had another name."""
ADDED: Mapping[str, Mapping[str, Any]] = {
    "TypeVector": {"after_training": False},
    "GroupCustomization": {"similarity": "cosine"},
    "Customized": {"layers": 2},
    "TypeGroups": {"by_run": False},
}
"""Settings that parts did not have, with the value that stands for what they did."""


def as_written_today(value: Any) -> Any:
    """Return settings with the parts' present names and with the settings that were added since."""
    if isinstance(value, list):
        return [as_written_today(own) for own in value]
    if not isinstance(value, Mapping):
        return value
    found = {key: as_written_today(own) for key, own in value.items()}
    if "part" not in found:
        return found
    name = RENAMED.get(found["part"], found["part"])
    return {**ADDED.get(name, {}), **found, "part": name}

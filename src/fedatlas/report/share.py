"""A page that may be handed on: without names, examples, paths and small groups."""

from __future__ import annotations

from typing import Any

import numpy as np

SMALL = 5
"""Groups of fewer clients are not shown."""
LEFT_OUT = ("pictures", "rows", "advice", "act", "settings", "reasons", "partition", "target")


def shareable(block: dict[str, Any]) -> dict[str, Any]:
    """Return a page's data without names of clients and domains, examples, texts, paths and groups below five."""
    clients = block["clients"]
    counts = np.bincount([own for own in clients["domain"] if own >= 0], minlength=len(clients["domains"]))
    large = [i for i, count in enumerate(counts) if count >= SMALL]
    number = {i: j for j, i in enumerate(large)}
    named = {
        "name": [f"client {i + 1}" for i in range(len(clients["name"]))],
        "domains": [f"{clients['gathered_by']} {j + 1}" for j in range(len(large))],
        "domain": [number.get(own, -1) for own in clients["domain"]],
    }
    kept = {key: value for key, value in block.items() if key not in LEFT_OUT}
    return kept | {
        "shared": True,
        "clients": clients | named,
        "groupings": [_without_small(own) for own in block["groupings"] if own["key"] != "domain"],
        "algorithms": [own | {"newcomers": []} for own in block["algorithms"]],
    }


def _without_small(grouping: dict[str, Any]) -> dict[str, Any]:
    of = np.array(grouping["of"])
    counts = {int(group): int((of == group).sum()) for group in set(of.tolist())}
    kept = [group if group >= 0 and counts[group] >= SMALL else -1 for group in of.tolist()]
    return grouping | {"of": kept, "about": "", "names": None}

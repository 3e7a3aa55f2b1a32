"""Checks by its provenance whether an atlas was made from the clients that it is used for."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from fedatlas.atlas.atlas import CLASSES, Atlas
from fedatlas.data.federation import Federation, Origin

FEDERATION, ORIGIN = "federation", "origin"
"""Keys of an atlas's provenance: what it was made of in words, ``data: partition``, and as a record."""
MOST_CLASSES = 1000
"""Classes whose names go into a provenance."""
UNNAMED_DATA = "arrays"
"""The name of data that were not given one."""
_NUMBERED = re.compile(r"client-\d+")


def made_of(federation: Federation) -> dict[str, Any]:
    """Return the description of a federation that goes into the provenance of its atlas."""
    origin, classes = federation.origin, federation.data.classes
    return {
        FEDERATION: f"{federation.name}: {federation.partition}",
        ORIGIN: None if origin is None else asdict(origin),
        **({CLASSES: list(classes)} if 0 < len(classes) <= MOST_CLASSES else {}),
    }


def made_of_run(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same for the federation of a run, from the run's settings."""
    known = resolved["federation"]
    return {FEDERATION: f"{known['data']}: {known['partition']}", ORIGIN: known.get(ORIGIN)}


def origin_remark(provenance: Mapping[str, Any], here: Mapping[str, Any], clients: Iterable[str]) -> str | None:
    """Return what to say where an atlas was made of other clients than those ``here``, as ``made_of`` writes both."""
    one, other = (Origin.read(record.get(ORIGIN)) for record in (provenance, here))
    if one is None or other is None or not is_other(one, other, clients):
        return None
    return (
        f"the atlas was made from {provenance.get(FEDERATION)}, but the clients are those of {here[FEDERATION]}. "
        "Where only names and sizes are the same, its vectors mean nothing. Make the atlas of these clients."
    )


def atlas_remarks(atlas: Atlas, federation: Federation) -> list[str]:
    """Return a remark where an atlas has a federation's clients, but was made of others.

    An atlas that lacks a client, or has another number of its examples, is an error before the first round.
    """
    wanted = {federation.clients[i].name: len(federation.clients[i].train) for i in federation.training_ids}
    if not wanted.items() <= dict(zip(atlas.names, atlas.sizes.tolist(), strict=True)).items():
        return []
    remark = origin_remark(atlas.provenance, made_of(federation), [client.name for client in federation])
    return [] if remark is None else [remark]


def warn_of_other_run(atlas: Atlas, resolved: Mapping[str, Any], *, stacklevel: int = 2) -> None:
    """Warn if an atlas was made from other clients than those of a run."""
    names = [client["name"] for client in resolved["federation"]["clients"]]
    if (remark := origin_remark(atlas.provenance, made_of_run(resolved), names)) is not None:
        warnings.warn(remark, stacklevel=stacklevel + 1)


def is_other(one: Origin, other: Origin, clients: Iterable[str]) -> bool:
    """Return whether two origins are plainly of different clients.

    The seed does not count where clients have names that stand for something, such as an owner's or a domain's.

    >>> one, other = (Origin(data="mnist", rule="Iid(num_clients=9)", seed=seed) for seed in (0, 1))
    >>> is_other(one, other, ["client-0"]), is_other(one, other, ["Lyon"])
    (True, False)
    """
    return (
        (one.data != other.data and UNNAMED_DATA not in (one.data, other.data))
        or (one.rule != other.rule and None not in (one.rule, other.rule))
        or (one.seed != other.seed and any(_NUMBERED.fullmatch(name) for name in clients))
    )

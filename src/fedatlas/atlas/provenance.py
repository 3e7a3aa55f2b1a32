"""Whether an atlas was made of the clients that it is used for, as far as it says of what it was made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedatlas.atlas.atlas import Atlas

if TYPE_CHECKING:
    from fedatlas.data.federation import Federation
    from fedatlas.parts.algorithm import Algorithm

ORIGIN = "federation"
"""The key of an atlas's provenance that says of what it was made: ``data: partition``, as ``federate`` writes it."""

_WRITTEN = re.compile(
    r"(?P<data>.*?): (?P<rule>\w+\(.*\)), (\S+ of each client's examples for test|test on \w+), .* held out, "
    r"seed (?P<seed>-?\d+)",
    re.DOTALL,
)
_UNNAMED_DATA = "arrays"
_NUMBERED = re.compile(r"client-\d+")
_ADDRESS = "at 0x"


def warn_of_other_origin(algorithm: Algorithm, federation: Federation) -> None:
    """Warn where an atlas that an algorithm uses says that it was made of other data or another partition."""
    here = f"{federation.name}: {federation.partition}"
    for origin in _origins(algorithm, federation):
        warn_if_other(origin, here, [client.name for client in federation], stacklevel=4)


def warn_if_other(origin: object, here: str, clients: Iterable[str], *, stacklevel: int = 2) -> None:
    """Warn where ``origin`` and ``here``, both ``data: partition``, cannot be of the same clients."""
    if is_other(str(origin), here, clients):
        warnings.warn(
            f"the atlas says it was made of {origin}; but the clients are those of {here}. Where only names and sizes "
            "are the same, its vectors mean nothing. Make the atlas of these clients.",
            stacklevel=stacklevel + 1,
        )


def is_other(origin: str, here: str, clients: Iterable[str]) -> bool:
    """Tell whether two lines ``data: partition`` are plainly of different clients; what cannot be read may be alike.

    How much is set apart for tests or held out does not count, and neither does the seed where clients have names that
    stand for something, such as an owner's or a domain's.

    >>> one, other = (f"mnist: Iid(num_clients=9), 0.25 of each client's examples for test, 0 held out, seed {i}"
    ...               for i in (0, 1))
    >>> is_other(one, other, ["client-0"]), is_other(one, other, ["Lyon"]), is_other("", other, ["client-0"])
    (True, False, False)
    """
    one, other = _WRITTEN.match(origin), _WRITTEN.match(here)
    if one is None or other is None:
        return False
    names = {one["data"], other["data"]}
    rules = {one["rule"], other["rule"]}
    return (
        (len(names) > 1 and _UNNAMED_DATA not in names)
        # A part of the user's own may be written with its place in memory, which is another each time.
        or (len(rules) > 1 and not any(_ADDRESS in rule for rule in rules))
        or (one["seed"] != other["seed"] and any(_NUMBERED.fullmatch(name) for name in clients))
    )


def _sizes(atlas: Atlas) -> dict[str, int]:
    return dict(zip(atlas.names, atlas.sizes.tolist(), strict=True))


def _origins(algorithm: Algorithm, federation: Federation) -> list[str]:
    """Return what an algorithm's atlases, and the groups that were made of one, say of their origin.

    Those that do not have the clients are left out: they are refused before the first round.
    """
    wanted = {federation.clients[i].name: len(federation.clients[i].train) for i in federation.training_ids}
    found = []
    for part in algorithm.parts():
        atlas, groups = getattr(part, "atlas", None), getattr(part, "groups", None)
        if isinstance(atlas, Atlas) and wanted.items() <= _sizes(atlas).items():
            found.append(str(atlas.provenance.get(ORIGIN, "")))
        if (origin := getattr(groups, "origin", "")) and wanted.keys() <= set(getattr(groups, "clients", ())):
            found.append(str(origin))
    return list(dict.fromkeys(filter(None, found)))

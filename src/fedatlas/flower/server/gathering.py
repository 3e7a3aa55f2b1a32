"""The clients that a run begins with, and the form of their data."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedatlas.errors import DataError
from fedatlas.flower.protocol.data_form import DataForm, Member, natural_order
from fedatlas.flower.server.exchange import QUIET, Exchange, KnownClient, NetworkSettings


def gather(exchange: Exchange, settings: NetworkSettings) -> tuple[list[Member], DataForm]:
    """Wait for the clients and return them in the roster's order, with the form of their data."""
    wanted = settings.clients
    if isinstance(wanted, list):
        names = [str(name) for name in wanted]
        exchange.wait_for(lambda online: online >= set(names), f"the clients {', '.join(names)}")
    elif wanted is not None:
        exchange.wait_for(lambda online: len(online) >= wanted, f"{wanted} clients")
        names = sorted(exchange.known, key=_roster_order(exchange))[:wanted]
    else:
        names = _wait_for_all(exchange)
    found = [exchange.known[name] for name in names]
    return _united(exchange, found)


def _united(exchange: Exchange, found: Sequence[KnownClient]) -> tuple[list[Member], DataForm]:
    """Return the clients whose examples have the form of most, and that form; the others are left out."""
    usual = Counter(known.form.key() for known in found).most_common(1)[0][0]
    form = next(known.form for known in found if known.form.key() == usual)
    first, members = form, []
    for known in found:
        try:
            form = form if known.form is first else form.unite(known.form)
            members.append(known.member)
        except DataError as error:
            exchange.leave_out(known.member.name, "hello", f"{error}. All examples must have one form")
    if not members or all(member.held_out for member in members):
        raise DataError(
            "no client is left that trains: all must have examples of one form.", code="kind-mismatch", got=form.line()
        )
    return members, form.settled()


def _wait_for_all(exchange: Exchange) -> list[str]:
    seen: set[str] = set()
    since = time.monotonic()

    def settled(online: set[str]) -> bool:
        nonlocal since, seen
        if online and online != seen:
            seen, since = set(online), time.monotonic()
        everyone = exchange.simulated and len(online) == len(list(exchange.grid.get_node_ids()))
        return bool(online) and (everyone or time.monotonic() - since > QUIET)

    names = exchange.wait_for(settled, "clients")
    return sorted(names, key=_roster_order(exchange))


def _roster_order(exchange: Exchange) -> Any:
    def key(name: str) -> tuple[int, Any]:
        position = exchange.known[name].position
        return (0, position) if position is not None else (1, natural_order(name))

    return key

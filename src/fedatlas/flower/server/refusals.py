"""What a node says in place of a reply, and the line that tells why a run cannot go on: its nodes do not allow it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flwr.app import Message

from fedatlas.errors import UsageError, printable
from fedatlas.flower.node.policy import ALLOWING
from fedatlas.flower.protocol.messages import BadReplyError

AGAINST = "against the policy of this node"
"""How a refusal by a policy begins."""
MOST_REASON = 2000
"""Characters of a node's own words about what failed."""
MOST_SHOWN = 300
"""Characters of them in a line of the log, where the node does not say what its owner can do."""
_RAISED = re.compile(r"<class '[\w.]+'>:<'(.*?)(?:'>)?", re.DOTALL)
"""How Flower writes an exception of a node's app."""


class Refusal(NamedTuple):
    """A node that does not let its client take part."""

    name: str
    """Under which its key is registered; of a node without one its number."""
    reason: str
    by_policy: bool


def raise_node_error(reply: Message) -> None:
    """Raise BadReplyError if a node sends an error in place of a reply."""
    if reply.has_error():
        given = " ".join(str(reply.error.reason)[:MOST_REASON].split())
        raised = _RAISED.fullmatch(given)
        reason = printable(raised[1] if raised else given)
        raise BadReplyError(f"the node reports: {reason}", code="node-error", reason=reason)


def by_policy(error: Exception) -> bool:
    """Return whether a node refused by its policy; it is the node's own word."""
    return isinstance(error, BadReplyError) and str(error.fields.get("reason", "")).startswith(AGAINST)


def brief(reason: str) -> str:
    """Return a reason for a line of the log: of a policy's refusal what its owner can do, where that is known."""
    said, _, do = reason.rpartition(ALLOWING)
    return f"its policy does not allow this run. To allow it, {do}" if said else reason[:MOST_SHOWN]


def not_allowed(refused: Sequence[Refusal]) -> UsageError:
    """Return the error for a run that these nodes refuse by their policies."""
    by_reason: dict[str, list[str]] = {}
    for own in refused:
        said, _, do = own.reason.rpartition(ALLOWING)
        why = own.reason.partition(f"{AGAINST}: ")[2] or own.reason
        by_reason.setdefault(f"Ask each owner to {do}" if said else f"Why: {why[:MOST_SHOWN]}", []).append(own.name)
    parts = [
        f"{len(names)} {'nodes do' if len(names) > 1 else 'node does'} not allow this run ({listed(names)}). {reason}"
        for reason, names in by_reason.items()
    ]
    return UsageError(f"{'. '.join(parts)}.", code="against-policy", clients=sorted(own.name for own in refused))


def listed(names: Iterable[str]) -> str:
    """Return names in a line."""
    return ", ".join(sorted(names)) or "none"

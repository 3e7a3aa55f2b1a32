"""How the clients' changes become a model: a weighted mean, then server rules that chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from fedatlas.parts.part import ServerPart
from fedatlas.parts.types import ClientInfo, Cohort, Roster, Tensors


class ServerRule(ServerPart):
    """Turns the weighted change into the applied change; may have memory, and send notes to clients.

    Subclasses are frozen dataclasses. A rule of the same name as a term is that term's other half: the term's survey
    and upload notes arrive under that name, and so do the rule's notes to the client.
    """

    ignores_weights: ClassVar[bool] = False
    """Whether it works on the clients' own changes, so that a weighting has no effect on it."""
    leaves_change: ClassVar[bool] = False
    """Whether ``apply`` returns the change that it got and only remembers; a rule without ``apply`` does so anyway."""

    def initial_buffers(self, buffers: Tensors, roster: Roster) -> Tensors:
        """Return the shared buffers to begin with; a rule may fill one from what clients introduced."""
        return buffers

    def gather(self, memory: Tensors, surveys: Mapping[int, Tensors], roster: Roster) -> Tensors:
        """Return the memory after this round's surveys, keyed by client id."""
        return memory

    def note(self, memory: Tensors, client: ClientInfo) -> Tensors:
        """Return the note to one client, sent with its assignment."""
        return {}

    def apply(self, change: Tensors, memory: Tensors, cohort: Cohort) -> tuple[Tensors, Tensors]:
        """Return the change to apply and the new memory."""
        return change, memory

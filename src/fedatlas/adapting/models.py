"""The models of a run, of which one at a time is in the network: one for all clients, or one for each group."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from fedatlas.atlas.placing import Placement
from fedatlas.errors import UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sharing import COMMON
from fedatlas.parts.types import ServerState, Tensors
from fedatlas.runs.run import Run


class GroupModels:
    """A network whose shared parameters are those of one group after another, and are not trained."""

    def __init__(self, network: nn.Module, state: ServerState) -> None:
        self.network, self.state = network, state
        self.group = None if state.has_common_model else 0
        """The group whose model is in the network; None for the model of all clients."""
        self.buffers: Tensors = {}
        """Its shared running statistics."""
        self._put()

    def load(self, group: int | None) -> None:
        """Put a group's model into the network."""
        if group != self.group:
            self.group = group
            self._put()

    def serving(self, found: Placement | int | None) -> int | None:
        """Return the group whose model a client uses that belongs to a group.

        None is the model of all clients: for a client without a group, and for those of a group that has not left it.
        """
        group = found.group if isinstance(found, Placement) else found
        if group is None or not self.state.has_common_model:
            return group
        return group if group in self.left() else None

    def left(self) -> set[int]:
        """Return the groups that serve clients with a model of their own."""
        return set() if self.state.group_of is None else set(self.state.group_of.tolist()) - {COMMON}

    def values(self, names: Iterable[str]) -> Tensors:
        """Return those shared parameters and running statistics of the model in the network that have these names."""
        shared, buffers = self.state.model(self.group)
        device = next(self.network.parameters()).device
        known = {**shared, **buffers}
        return {name: known[name].to(device) for name in sorted(names) if name in known}

    def origin(self, start: tuple[Tensors, str]) -> str:
        """Return in words where tuning begins: with the shared model, and with a client's own values if it has any."""
        model = "the run's model" if self.group is None else f"the model of group {self.group}"
        own, words = start
        return f"{model}; what is personal: {words}" if own else model

    def num_bytes(self, group: int | None, *, all_groups: bool = False) -> int:
        """Return the size of a group's model, or of all groups' together."""
        state = self.state
        parts = [(state.shared, state.buffers), *((own.shared, own.buffers) for own in state.groups)]
        chosen = parts if all_groups else [state.model(group)]
        return sum(tensor.nbytes for model in chosen for own in model for tensor in own.values())

    def _put(self) -> None:
        shared, buffers = self.state.model(self.group)
        with torch.no_grad():
            for name, value in shared.items():
                self.network.get_parameter(name).copy_(value)
        device = next(self.network.parameters()).device
        self.buffers = {name: value.to(device) for name, value in buffers.items()}


def freeze_shared(network: nn.Module, state: ServerState, algorithm: Algorithm, run: Run) -> None:
    """Keep the shared parameters from being trained; raise UsageError if the run's are of another network."""
    personal = algorithm.split.personal_parameters(network)
    parameters = {k: p for k, p in network.named_parameters() if p.requires_grad and k not in personal}
    shared, _ = state.model(None if state.has_common_model else 0)
    if {k: p.shape for k, p in parameters.items()} != {k: t.shape for k, t in shared.items()}:
        raise UsageError(
            f"{run.folder} holds the parameters of another network; give model= as it was in training.",
            code="settings-differ",
            path=str(run.folder),
        )
    for parameter in parameters.values():
        parameter.requires_grad_(False)

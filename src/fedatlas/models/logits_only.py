"""Networks that return their outputs alone: any ``nn.Module``, with features from a named layer where needed."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedatlas.errors import unknown_name

INSIDE = "network."
"""Before the names of a wrapped network's parameters."""


class LogitsOnly(nn.Module):
    """Returns features beside the outputs of a network that returns its outputs alone.

    The features are the inputs of the module named ``layer``, flat; without one they have no columns.
    """

    def __init__(self, network: nn.Module, layer: str | None = None) -> None:
        super().__init__()
        self.network, self.layer = network, layer

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the network's outputs."""
        if self.layer is None:
            outputs: Tensor = self.network(inputs)
            return outputs.new_zeros(len(outputs), 0), outputs
        kept: list[Tensor] = []
        module = self.network.get_submodule(self.layer)
        handle = module.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
        try:
            outputs = self.network(inputs)
        finally:
            handle.remove()
        return torch.flatten(kept[-1], 1), outputs


def with_features(network: nn.Module, layer: str) -> LogitsOnly:
    """Return a network that returns the inputs of its named layer, the classifier, as features beside its outputs.

    >>> net = with_features(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), "2")
    >>> [tuple(part.shape) for part in net(torch.zeros(5, 4))]
    [(5, 8), (5, 3)]
    """
    known = [name for name, _ in network.named_modules() if name]
    if layer not in known:
        raise unknown_name(f"layer of {type(network).__name__}", layer, known)
    return LogitsOnly(network, layer)


def lacks_features(network: nn.Module) -> bool:
    """Return whether a network returns its outputs alone."""
    return any(isinstance(module, LogitsOnly) and module.layer is None for module in network.modules())


def wrapped_alike(network: nn.Module, names: Iterable[str]) -> nn.Module:
    """Return a network in the form in which it was trained, by the names of the trained parameters."""
    trained = list(names)
    inside = bool(trained) and all(name.startswith(INSIDE) for name in trained)
    own = {name for name, _ in network.named_parameters()}
    return LogitsOnly(network) if inside and not own >= set(trained) else network

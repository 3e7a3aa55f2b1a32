"""More of a run's model to tune than its algorithm keeps personal: the head, the norms, or all of it.

The chosen tensors become a client's own: they begin with the values of the shared model that serves the client, and the
shared model keeps its bits.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from fedatlas.adapting.settings import Tune
from fedatlas.client.runner import ClientRunner
from fedatlas.errors import UsageError
from fedatlas.models.head import find_head, head_parameters
from fedatlas.models.norms import NORM_LAYERS
from fedatlas.parts.metric import always
from fedatlas.parts.split import Split, floating_buffers
from fedatlas.parts.types import ServerState, Tensors


@dataclass(frozen=True, kw_only=True)
class Widened(Split):
    """Keeps what ``base`` keeps, and what ``tune`` names."""

    name: ClassVar[str] = "widened"
    base: Split
    tune: Tune

    def personal_parameters(self, model: nn.Module) -> set[str]:
        """Return the names of the base's parameters, and of the chosen ones."""
        return self.base.personal_parameters(model) | chosen_parameters(model, self.tune)

    def personal_buffers(self, model: nn.Module) -> set[str]:
        """Return the names of the base's buffers, and of the running statistics of what was chosen."""
        return self.base.personal_buffers(model) | chosen_buffers(model, self.tune)

    def initial_personal(self, model: nn.Module, place: int) -> Tensors:
        """Return what one client of the base starts with."""
        return self.base.initial_personal(model, place)


def has_head(model: nn.Module) -> bool:
    """Return whether a network has a last layer that can be told from the others."""
    try:
        find_head(model)
    except UsageError:
        return False
    return True


def chosen_parameters(model: nn.Module, tune: Tune) -> set[str]:
    """Return the names of the trainable parameters that a word stands for.

    >>> sorted(chosen_parameters(nn.ModuleDict({"norm": nn.LayerNorm(4), "head": nn.Linear(4, 3)}), "norms"))
    ['norm.bias', 'norm.weight']
    """
    if tune == "head":
        return set(head_parameters(model))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if tune == "norms":
        norms = [(path, module) for path, module in model.named_modules() if isinstance(module, NORM_LAYERS)]
        return trained & {name for path, norm in norms for name, _ in norm.named_parameters(prefix=path)}
    return trained if tune == "all" else set()


def chosen_buffers(model: nn.Module, tune: Tune) -> set[str]:
    """Return the names of the running statistics that go with the parameters of a word."""
    if tune == "all":
        return floating_buffers(model)
    norms = [(path, module) for path, module in model.named_modules() if isinstance(module, NORM_LAYERS)]
    names = {name for path, norm in norms for name, _ in norm.named_buffers(prefix=path)}
    return names & floating_buffers(model) if tune == "norms" else set()


def widened(runner: ClientRunner, state: ServerState, tune: Tune) -> ClientRunner:
    """Return a runner over a copy of the network in which more is personal; the other shared parameters are frozen."""
    network = copy.deepcopy(runner.bench.model)
    shared, _ = state.model(None if state.has_common_model else 0)
    for name in shared:
        network.get_parameter(name).requires_grad_(True)
    chosen = chosen_parameters(network, tune)
    if not chosen:
        raise UsageError(
            f"tune={tune!r} (--tune {tune}): {type(network).__name__} has no norm with a scale or a shift that trains. "
            "Choose 'head' or 'all'.",
            code="model-unfit",
            got=type(network).__name__,
        )
    for name in shared:
        network.get_parameter(name).requires_grad_(name in chosen)
    split = Widened(base=runner.algorithm.split, tune=tune, buffers=runner.algorithm.split.buffers)
    algorithm = replace(runner.algorithm, split=split)
    # The first metrics are those of every evaluation, which a runner adds itself.
    further = runner.metrics[len(always(runner.federation.data.task)) :]
    return ClientRunner(algorithm, network, runner.federation, runner.work, runner.seed, metrics=further)

"""Every client alone: the yardstick for all that share.

client: w_k <- local steps on cross-entropy from its own w_k          the same start for all, the same steps a round
server: nothing to add up                                             no parameter and no running statistic leaves
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedatlas.algorithms.registry import recipe
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.split import Split, floating_buffers


@dataclass(frozen=True, kw_only=True)
class KeepAll(Split):
    """Shares nothing: all parameters and running statistics stay with their client, whatever ``buffers`` says."""

    name: ClassVar[str] = "keep_all"

    def personal_parameters(self, model: nn.Module) -> set[str]:
        """Return the names of all parameters."""
        return {name for name, _ in model.named_parameters()}

    def personal_buffers(self, model: nn.Module) -> set[str]:
        """Return the names of all floating buffers."""
        return floating_buffers(model)

    @property
    def newcomers_take_the_mean(self) -> bool:
        """A client that never trained has the model's first values: the mean of models trained apart is no model."""
        return False


@recipe(changes="split: all of it, a yardstick", paper="fedatlas")
def local() -> Algorithm:
    """Every client alone, with as many steps as in the others and nothing shared: what sharing has to beat."""
    return Algorithm(name="local", split=KeepAll())

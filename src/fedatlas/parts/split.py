"""Which parameters and buffers stay home: by module type, never by a part of a name."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fedatlas.errors import UsageError
from fedatlas.parts.types import Tensors, UsualModels

Buffers = Literal["average", "keep", "none"]


def floating_buffers(model: nn.Module) -> set[str]:
    """Return the names of the buffers that can be averaged; a counter such as num_batches_tracked cannot."""
    return {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Shares all parameters; other splits keep some at home.

    ``buffers`` is the policy for running statistics: ``average`` them like parameters, ``keep`` each client's own,
    or have ``none``: normalisation layers then use the statistics of the batch at hand, in test too.
    """

    name: ClassVar[str] = "share_all"
    models: ClassVar[UsualModels] = {}
    """The model that suits it, by kind of data, where not any will do."""
    buffers: Buffers = "average"

    def __post_init__(self) -> None:
        if self.buffers not in ("average", "keep", "none"):
            raise UsageError(
                f"buffers must be 'average', 'keep' or 'none', got {self.buffers!r}.",
                code="wrong-value",
                setting="buffers",
                got=self.buffers,
            )

    def personal_parameters(self, model: nn.Module) -> set[str]:
        """Return the names of parameters that stay on the client."""
        return set()

    def personal_buffers(self, model: nn.Module) -> set[str]:
        """Return the names of floating buffers that stay on the client."""
        return floating_buffers(model) if self.buffers == "keep" else set()

    def initial_personal(self, model: nn.Module, place: int) -> Tensors:
        """Return personal values that one client starts with, where they are not the model's own.

        ``place`` is the client's position among those that train, or among the held-out ones if it is held out. The
        model gives names and shapes; its values may be another client's.
        """
        return {}

    @property
    def newcomers_take_the_mean(self) -> bool:
        """Whether a held-out client starts from the mean of those that trained, or from ``initial_personal``."""
        return True


ShareAll = Split

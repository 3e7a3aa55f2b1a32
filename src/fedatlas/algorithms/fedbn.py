"""FedBN. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.

client: w_k <- local steps on cross-entropy from (shared rest w_R^t, its own norms)
server: w_R^{t+1} = sum_{k in C} (n_k / sum_C n) w_Rk          gamma, beta and running statistics never leave
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedatlas.algorithms.registry import recipe
from fedatlas.errors import UsageError
from fedatlas.models.norms import NORM_LAYERS
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.split import Split, floating_buffers
from fedatlas.parts.types import UsualModels


@dataclass(frozen=True, kw_only=True)
class KeepNorms(Split):
    """Shares all but the normalisation layers: their scales, shifts and running statistics stay with their client.

    Layers are found by type, so one inside a shortcut or under an unusual name is kept too. ``buffers`` rules the
    buffers of other layers.
    """

    name: ClassVar[str] = "keep_norms"
    models: ClassVar[UsualModels] = {
        "image": ("cnn", {"norm": "batch"}),
        "features": ("mlp", {"norm": "batch"}),
    }

    def personal_parameters(self, model: nn.Module) -> set[str]:
        """Return the names of the scales and shifts of all normalisation layers."""
        return {name for path, norm in norm_layers(model) for name, _ in norm.named_parameters(prefix=path)}

    def personal_buffers(self, model: nn.Module) -> set[str]:
        """Return the names of the running statistics of all normalisation layers."""
        statistics = {name for path, norm in norm_layers(model) for name, _ in norm.named_buffers(prefix=path)}
        return (statistics & floating_buffers(model)) | super().personal_buffers(model)


def norm_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the normalisation layers of a model with their paths; raise UsageError if it has none."""
    found = [(path, module) for path, module in model.named_modules() if isinstance(module, NORM_LAYERS)]
    if not found:
        raise UsageError(
            f"FedBN: {type(model).__name__} has no normalisation layer to keep on clients: it would be FedAvg. "
            "Choose a model with norms (--model cnn --set model.norm=batch; norm='batch' in model_options), or train "
            "fedavg.",
            code="model-unfit",
            got=type(model).__name__,
        )
    yield from found


@recipe(changes="split", paper="Li et al. 2021")
def fedbn() -> Algorithm:
    """FedAvg of all but the normalisation layers, which every client keeps, running statistics included."""
    return Algorithm(name="fedbn", split=KeepNorms())

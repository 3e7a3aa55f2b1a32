"""Whether images lie in memory channel by channel or pixel by pixel (channels last)."""

import torch
from torch import Tensor, nn


def prefers_channels_last(model: nn.Module, inputs: Tensor) -> bool:
    """Tell whether a network is quicker with the channels of its images last, and can take them so.

    Convolutions are. On a CPU torch's group and instance norms are slower with it by more than that gains; and a
    network that reshapes by ``view`` cannot take them, which is found out with one image.
    """
    if inputs.ndim != 4 or not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return False
    if inputs.device.type == "cpu" and any(_is_slow_norm(module) for module in model.modules()):
        return False
    mode = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(inputs[:2].float().contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    finally:
        model.train(mode)
    return True


def _is_slow_norm(module: nn.Module) -> bool:
    quick = isinstance(module, nn.modules.batchnorm._BatchNorm | nn.LayerNorm)
    return "Norm" in type(module).__name__ and not quick

"""Whether images are stored in memory channel by channel or pixel by pixel (channels last)."""

import torch
from torch import Tensor, nn


def prefers_channels_last(model: nn.Module, inputs: Tensor) -> bool:
    """Return whether a network is faster with channels-last images, and can read them.

    Convolutions are faster. On a CPU, torch's group and instance norms lose more time than that saves. A network that
    reshapes with ``view`` cannot read such images; a trial with a few images shows it.
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

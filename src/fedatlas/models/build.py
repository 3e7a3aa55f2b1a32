"""Build a model by name, from a seed."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fedatlas.data.memory import physical_memory
from fedatlas.errors import UsageError, unknown_name
from fedatlas.models.classifier import Classifier, InputForm, require_positive
from fedatlas.models.hub import hub_backbone
from fedatlas.models.registry import HUB_PREFIX, MODELS
from fedatlas.seeds import derive

Builder = Callable[..., Classifier]
COPIES = 4
"""Of a model in memory: its parameters, their gradients, what an optimizer keeps, and the server's."""
MOST_TENSORS = 20_000
"""Parameters of a model, each a tensor; a ResNet of 1,202 layers has 3,600."""


def find_builder(name: str) -> Builder:
    """Return the function that builds a model of this name."""
    if name.startswith(HUB_PREFIX) and name != HUB_PREFIX:
        return functools.partial(hub_backbone, source=name.removeprefix(HUB_PREFIX))
    if name not in MODELS:
        raise unknown_name("model", name, [*MODELS, f"{HUB_PREFIX}NAME_OR_FOLDER"])
    return MODELS[name]


def model_options(name: str) -> dict[str, Any]:
    """Return the options of a model and their defaults, e.g. ``{"width": 32, "norm": "none"}`` for ``cnn``."""
    parameters = inspect.signature(find_builder(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "source"}


def build_model(
    name: str,
    *,
    num_classes: int,
    input_shape: tuple[int, ...],
    vocabulary_size: int = 0,
    seed: int = 0,
    **options: Any,
) -> Classifier:
    """Build a model; its first parameters depend on the seed alone, and no global random state is touched.

    Args:
        name: one of ``MODELS``, or ``hf:NAME_OR_FOLDER``.
        input_shape: of one example: (channels, height, width), (length,) of tokens, or (width,) of features.
        vocabulary_size: how many tokens there are, where the inputs are tokens.
        options: the model's own, see ``model_options``.

    >>> model = build_model("cnn", num_classes=10, input_shape=(3, 32, 32), width=16)
    >>> features, logits = model(torch.zeros(2, 3, 32, 32))
    >>> features.shape, logits.shape
    (torch.Size([2, 64]), torch.Size([2, 10]))
    """
    builder = find_builder(name)
    known = model_options(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of model {name!r}", option, known)
    require_positive(name, num_classes=num_classes)
    form = InputForm(shape=tuple(input_shape), vocabulary_size=vocabulary_size)
    # torch.manual_seed would reseed the accelerators as well; drawing on the CPU gives every device the same numbers.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), bounded(name):
        torch.default_generator.manual_seed(derive(seed, "model"))
        return builder(num_classes, form, **options)


@contextmanager
def bounded(name: str) -> Iterator[None]:
    """Raise UsageError as soon as modules that are being built would not fit the memory, before numbers are written.

    A config or a server names the sizes. Memory that was asked for and never written to takes no room.
    """
    most, total, count = physical_memory() // COPIES, 0, 0

    def watch(_: nn.Module, title: str, parameter: nn.Parameter | None) -> None:
        nonlocal total, count
        total, count = total + (0 if parameter is None else parameter.nbytes), count + 1
        if total > most or count > MOST_TENSORS:
            raise _too_large(name, f"{total:,} bytes in {count:,} tensors or more")

    hook = register_module_parameter_registration_hook(watch)
    try:
        yield
    except (RuntimeError, TypeError, OverflowError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in ("allocate", "verflow")):
            raise
        raise _too_large(name, "more than can be counted") from error
    finally:
        hook.remove()


def _too_large(name: str, size: str) -> UsageError:
    return UsageError(
        f"model {name!r} would be too large for this machine: its parameters have {size}. Choose a smaller width or "
        "depth.",
        code="out-of-memory",
        model=name,
    )

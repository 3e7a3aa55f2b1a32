"""Build a model by name, from a seed."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from fedatlas.errors import unknown_name
from fedatlas.models.classifier import Classifier, InputForm, require_positive
from fedatlas.models.hub import hub_backbone
from fedatlas.models.registry import HUB_PREFIX, MODELS
from fedatlas.seeds import derive

Builder = Callable[..., Classifier]


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
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(derive(seed, "model"))
        return builder(num_classes, form, **options)

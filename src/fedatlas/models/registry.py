"""The models by name; nothing here imports torch."""

from collections.abc import Callable
from typing import Any

from fedatlas.registry import Registry

MODELS: Registry[Callable[..., Any]] = Registry("model", "model", "fedatlas.models")
"""Functions ``(num_classes, form, **options)`` that build a network; ``reads`` lists the kinds of data."""
model = MODELS.register

USUAL_MODELS = {"features": "mlp", "image": "cnn", "tokens": "char_lstm"}
"""The model for each kind of data where a config names none."""

HUB_PREFIX = "hf:"
"""``hf:NAME_OR_FOLDER`` is any Hugging Face image backbone; needs the extra ``hub``."""

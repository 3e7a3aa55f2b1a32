"""Networks that return ``(features, logits)``, by name."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.models.build import build_model, model_options
    from fedatlas.models.classifier import Classifier, InputForm
    from fedatlas.models.logits_only import with_features
    from fedatlas.models.norms import NORM_LAYERS, NORMS, make_norm, without_running_statistics
    from fedatlas.models.registry import HUB_PREFIX, MODELS

__all__ = [
    "HUB_PREFIX",
    "MODELS",
    "NORMS",
    "NORM_LAYERS",
    "Classifier",
    "InputForm",
    "build_model",
    "make_norm",
    "model_options",
    "with_features",
    "without_running_statistics",
]

__getattr__, __dir__ = lazy_exports(__name__)

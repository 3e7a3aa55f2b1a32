"""Networks that return ``(features, logits)``, by name."""

from fedatlas.models.classifier import Classifier, InputForm
from fedatlas.models.norms import NORM_LAYERS, NORMS, make_norm, without_running_statistics
from fedatlas.models.registry import HUB_PREFIX, MODELS, ModelEntry, build_model, model_options

__all__ = [
    "HUB_PREFIX",
    "MODELS",
    "NORMS",
    "NORM_LAYERS",
    "Classifier",
    "InputForm",
    "ModelEntry",
    "build_model",
    "make_norm",
    "model_options",
    "without_running_statistics",
]

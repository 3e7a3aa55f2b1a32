"""Networks that return ``(features, logits)``, by name."""

from typing import TYPE_CHECKING

from fedatlas.registry import lazy_exports

if TYPE_CHECKING:
    from fedatlas.models.build import build_model, model_options
    from fedatlas.models.classifier import Classifier, InputForm
    from fedatlas.models.conditioned import ClientEmbedding, ConditionedClassifier, NormGenerators
    from fedatlas.models.head import find_head, head_parameters
    from fedatlas.models.logits_only import with_features
    from fedatlas.models.norms import BATCH_NORM_LAYERS, NORM_LAYERS, NORMS, make_norm, without_running_statistics
    from fedatlas.models.prompted import (
        DEFAULT_WEIGHTS,
        CustomizedClassifier,
        PromptedClassifier,
        TypePrompted,
        prompted_vit,
    )
    from fedatlas.models.registry import HUB_PREFIX, MODELS

__all__ = [
    "BATCH_NORM_LAYERS",
    "DEFAULT_WEIGHTS",
    "HUB_PREFIX",
    "MODELS",
    "NORMS",
    "NORM_LAYERS",
    "Classifier",
    "ClientEmbedding",
    "ConditionedClassifier",
    "CustomizedClassifier",
    "InputForm",
    "NormGenerators",
    "PromptedClassifier",
    "TypePrompted",
    "build_model",
    "find_head",
    "head_parameters",
    "make_norm",
    "model_options",
    "prompted_vit",
    "with_features",
    "without_running_statistics",
]

__getattr__, __dir__ = lazy_exports(__name__)

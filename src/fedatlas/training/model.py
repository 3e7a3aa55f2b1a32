"""The network of a run: by name, or custom and then tried on two examples before anything trains."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas.client.data import ResidentData
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.models import build_model, without_running_statistics
from fedatlas.models.build import bounded
from fedatlas.models.logits_only import LogitsOnly, lacks_features
from fedatlas.parts.algorithm import Algorithm
from fedatlas.seeds import derive, generator, repeatable, seeded

Model = str | nn.Module | Callable[[], nn.Module]
"""A model by name, a module, or a function that makes one."""
RETURN = "End its forward with `return features, logits`: the last layer's inputs and its outputs."
"""What to do about a model that returns something else (docs/models.md)."""


def own_network(model: Any, seed: int) -> nn.Module:
    """Return a copy of a custom module, or the module that a custom function makes."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)  # the caller's stays as it is
    wanted = "a name, a torch module or a function without arguments that returns one"
    if not callable(model):
        raise UsageError(
            f"model must be {wanted}; got {model!r}. `fedatlas list models` shows the names.",
            code="wrong-type",
            setting="model",
            got=model,
        )
    if lacks := _missing_argument(model):
        title = getattr(model, "__name__", repr(model))
        raise UsageError(
            f"model must be {wanted}; {title}() is {lacks}. Give `model=lambda: {title}(...)`.",
            code="model-arguments",
            got=title,
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "model"))
        network = model()
    if not isinstance(network, nn.Module):
        raise UsageError(
            f"model must be {wanted}; the function returned {network!r}.",
            code="wrong-type",
            setting="model",
            got=network,
        )
    return network


def _missing_argument(function: Callable[..., Any]) -> str | None:
    """Return which argument a function cannot be called without, in Python's words."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        return str(error)
    except ValueError:
        return None  # some built-in functions have no signature
    return None


@torch.no_grad()
def try_network(network: nn.Module, federation: Federation, device: torch.device) -> nn.Module:
    """Return a network that returns features and outputs; one that returns its outputs alone is wrapped.

    Raise UsageError if it returns something else for two examples. Neither the network nor any generator changes.
    """
    try:
        trial = copy.deepcopy(network).to(device).eval()
    except Exception:  # whatever a custom module raises; training will show what is wrong
        return network
    number = federation.training_ids[0]
    train = federation.clients[number].train
    rng = generator(0, "trial", device=federation.data.labels.device)
    inputs = ResidentData(federation, number).batch(train[[0, -1]], rng).inputs.to(device)
    title, shape = type(network).__name__, tuple(inputs.shape)
    with seeded(0, device), repeatable(device):
        try:
            output = trial(inputs)
        except Exception as error:  # whatever a custom module raises
            raise UsageError(
                f"model {title} cannot read two examples of {federation.name}, {str(inputs.dtype)[6:]} of shape "
                f"{shape}: {type(error).__name__}: {' '.join(str(error).split())}. Fit its first layers to this shape, "
                "or choose another model.",
                code="model-inputs",
                got=title,
                shape=shape,
            ) from error
    if isinstance(output, Tensor):
        network, output = LogitsOnly(network), (output, output)
    if not isinstance(output, tuple | list) or len(output) != 2 or not all(isinstance(o, Tensor) for o in output):
        kinds = [type(o).__name__ for o in output] if isinstance(output, tuple | list) else type(output).__name__
        raise UsageError(
            f"model {title} returned {kinds} and not two tensors. {RETURN}", code="model-outputs", got=kinds
        )
    data = federation.data
    wanted = (len(inputs), *data.task.output_shape(federation.num_classes, data.labels.shape[1:]))
    if tuple(output[1].shape) != wanted:
        raise UsageError(
            f"model {title} returned logits of shape {tuple(output[1].shape)} for two examples, wanted {wanted}: one "
            f"number for each of the {wanted[1]} {data.task.outputs} of {federation.name}. Fit its last layer to them, "
            "or swap what it returns if the logits come first: `return features, logits`.",
            code="model-outputs",
            got=tuple(output[1].shape),
            wanted=wanted,
        )
    return network


def usual_model(
    model: Model | None, options: Mapping[str, Any], data: Dataset, algorithm: Algorithm
) -> tuple[Model, dict[str, Any]]:
    """Return a model and its options; where none is given, the usual one for the data and the algorithm."""
    if model is not None:
        return model, dict(options)
    name, own = algorithm.usual_model(data.kind)
    return name, {**own, **options}


def make_model(
    model: Model | None,
    options: Mapping[str, Any],
    federation: Federation,
    algorithm: Algorithm,
    seed: int,
    *,
    try_on: torch.device | None = None,
) -> nn.Module:
    """Return the network of a run, with the algorithm's extensions around it.

    A custom model is tried on two examples on the device ``try_on``, if that is given.
    """
    data = federation.data
    model, options = usual_model(model, options, data, algorithm)
    network: nn.Module
    if isinstance(model, str):
        if data.task.output_shape(1, data.labels.shape[1:]) != (1,):
            raise UsageError(
                f"no model by name predicts {data.task.name} ({model!r}). Give a network of yours that returns logits "
                f"of shape {('N', *data.task.output_shape(federation.num_classes, data.labels.shape[1:]))}.",
                code="task-unfit",
                got=data.task.name,
            )
        network = build_model(
            model,
            num_classes=federation.num_classes,
            input_shape=tuple(federation.data.inputs.shape[1:]),
            vocabulary_size=len(federation.data.vocabulary),
            seed=seed,
            **options,
        )
    else:
        if options:
            raise UsageError(
                f"model_options are for models by name, and this model is custom; got {dict(options)}. Set them in "
                "your model, or give a function that closes over them: model=lambda: Net(width=8).",
                code="model-options",
                got=dict(options),
            )
        network = try_network(own_network(model, seed), federation, try_on or torch.device("cpu"))
    check_features(network, algorithm)
    return extended(network, algorithm, seed)


def check_features(network: nn.Module, algorithm: Algorithm) -> None:
    """Raise UsageError if a part looks at features and the network returns its outputs alone."""
    terms = [type(term).__name__ for term in algorithm.objective if term.needs_features]
    wants = next(iter([*terms, *(type(own).__name__ for own in algorithm.extensions if own.needs_features)]), None)
    if wants is not None and lacks_features(network):
        raise UsageError(
            f"{algorithm.name}: {wants} looks at features, and the model returns its outputs alone. Name the layer "
            "whose inputs they are, model=fedatlas.models.with_features(net, 'fc'), or end its forward with `return "
            "features, logits`.",
            code="features-missing",
            part=wants,
        )


def extended(network: nn.Module, algorithm: Algorithm, seed: int) -> nn.Module:
    """Return a network with the algorithm's extensions around it, and with running statistics only if it has any."""
    with torch.random.fork_rng(devices=[]), bounded(algorithm.name):
        torch.default_generator.manual_seed(derive(seed, "extensions"))
        network = algorithm.extend(network)
    return without_running_statistics(network) if algorithm.split.buffers == "none" else network

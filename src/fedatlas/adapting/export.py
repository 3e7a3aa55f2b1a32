"""A network adapted to one client, as one file for inference: safetensors, with the settings to build it, or ONNX."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedatlas.config.reopen import is_model_name
from fedatlas.errors import RunFolderError, UsageError
from fedatlas.models import build_model, without_running_statistics
from fedatlas.models.norms import HEAD_NORM, with_head_norm
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.checks import find_misfit
from fedatlas.runs.files import atomic_write
from fedatlas.runs.run import Run

ABOUT = "fedatlas"
LONGEST_STEM = 200
"""Bytes of a file's name without its ending; most systems allow 255."""


class _About(TypedDict):
    model: str | None
    options: dict[str, Any]
    head_norm: str
    buffers: str
    input_shape: list[int]
    vocabulary_size: int
    classes: list[str]
    mean: list[float]
    std: list[float]


def about_network(run: Run, algorithm: Algorithm) -> dict[str, Any]:
    """Return what ``load_personalised`` must know to build a run's network, and how its inputs are to be scaled."""
    model = run.resolved["model"]
    baked = [extension.baked_options() for extension in algorithm.extensions]
    # An extension that is not baked in is part of the network, which cannot be built from here.
    plain = is_model_name(model["name"]) and None not in baked
    heads = [options[HEAD_NORM] for options in baked if options and HEAD_NORM in options]
    federation = run.resolved["federation"]
    form = federation["form"]
    channels = form["shape"][0] if federation["kind"] == "image" else 0
    return {
        "algorithm": algorithm.name,
        "model": model["name"] if plain else None,
        "options": {name: value for name, value in model["options"].items() if name != "pretrained"},
        HEAD_NORM: heads[-1] if heads else "layer",
        "buffers": algorithm.split.buffers,
        "input_shape": list(form["shape"]),
        "vocabulary_size": len(form["vocabulary"]),
        "classes": list(federation["classes"]),
        "mean": list(form["mean"] or (0.0,) * channels),
        "std": list(form["std"] or (1.0,) * channels),
    }


def save_personalised(model: nn.Module, about: dict[str, Any], path: Path | str) -> Path:
    """Write a network's state and its description."""
    path = Path(path)
    # Cloned: the format does not know tensors that share memory.
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in model.state_dict().items()}
    make_folder(path.parent)
    atomic_write(path, save_tensors(tensors, metadata={ABOUT: json.dumps(about)}))
    return path


def file_stem(client: str) -> str:
    """Return a client's name as that of a file: what would lead into another folder is written as its code.

    Different names stay different: so is the sign of a code itself, and a long name ends in a hash.

    >>> file_stem("Lyon/ward 3"), file_stem("Lyon%2Fward 3")
    ('Lyon%2Fward 3', 'Lyon%252Fward 3')
    """
    stem = re.sub(r"[/\\%\x00-\x1f\x7f\ud800-\udfff]|^\.", lambda found: f"%{ord(found[0]):02X}", client)
    if len(stem.encode()) <= LONGEST_STEM:
        return stem
    return f"{stem[:40]}-{hashlib.sha256(stem.encode()).hexdigest()[:16]}"


def make_folder(folder: Path) -> None:
    """Make a folder for networks; raise RunFolderError if that is not possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot make {folder} for networks: {error.strerror}. Choose a folder you may write to.",
            code="file-unwritable",
            path=str(folder),
        ) from error


def need_onnx() -> None:
    """Raise UsageError if ONNX files cannot be written."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise UsageError(
            f"ONNX needs the extra onnx: pip install 'fedatlas[onnx]' ({error}).",
            code="package-missing",
            package="onnx",
        ) from error


def export_onnx(model: nn.Module, inputs: Tensor, about: dict[str, Any], path: Path | str) -> Path:
    """Write a network as ONNX: ``inputs`` to ``features`` and ``logits``, any number of examples at a time.

    What is known about the network goes into the file's metadata under ``fedatlas``, as JSON.
    """
    need_onnx()
    import onnx

    path = Path(path)
    make_folder(path.parent)
    # The exporter warns about torchvision, which is not needed, and about its future changes.
    chatter = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (inputs,),
                input_names=["inputs"],
                output_names=["features", "logits"],
                dynamic_shapes=({0: torch.export.Dim("examples")},),
                dynamo=True,
                verbose=False,
            )
    finally:
        chatter.setLevel(before)
    assert program is not None
    file = program.model_proto
    onnx.helper.set_model_props(file, {ABOUT: json.dumps(about)})
    atomic_write(path, file.SerializeToString())
    return path


def read_about(path: Path | str) -> dict[str, Any]:
    """Return the description in a file of a personalised network: client, classes, and how inputs are scaled."""
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})[ABOUT])
        if find_misfit(about, _About, "") is not None:
            raise ValueError("its description lacks something")
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{path} is not a file of a personalised network ({error}). Write one with save().",
            code="file-unreadable",
            path=str(path),
        ) from error
    return about


def load_personalised(path: Path | str) -> nn.Module:
    """Return the network of a file that ``Adapted.save`` wrote, ready for inference.

    Its inputs are like the client's batches: images in [0, 1], less ``mean``, over ``std`` (see ``read_about``).
    """
    about = read_about(path)
    if about["model"] is None:
        raise UsageError(
            f"{path} holds a network that was not built by name alone. Build it yourself, and load the file's tensors "
            "(safetensors.torch.load_file) into it.",
            code="model-unfit",
            path=str(path),
        )
    network: nn.Module = build_model(
        about["model"],
        num_classes=len(about["classes"]),
        input_shape=tuple(about["input_shape"]),
        vocabulary_size=about["vocabulary_size"],
        # The file has the weights: it must not name others, in a file of this machine or on the hub.
        **{name: value for name, value in about["options"].items() if name != "pretrained"},
    )
    if about["buffers"] == "none":
        network = without_running_statistics(network)
    network = with_head_norm(network, about[HEAD_NORM])
    with safe_open(path, framework="pt") as file:
        network.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    return network.eval().requires_grad_(False)

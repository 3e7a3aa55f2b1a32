"""Weights that others trained: read from a file, a folder or the Hugging Face hub, and fitted into a model by name."""

import importlib
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedatlas.errors import UsageError
from fedatlas.models.classifier import Classifier

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
HUB_FILE = "model.safetensors"
OWN_PARTS = ("head.", "head_norm.")
"""What a model keeps as it was initialised where the file has none of it."""
SHOWN = 8


def load_pretrained(model: Classifier, source: str | Path, rename: Callable[[str], str]) -> None:
    """Fill a model with published weights; ``rename`` turns a published name into the model's.

    The head is left as it is where the published one has another number of classes.
    """
    found = {rename(name): value for name, value in read_weights(source).items()}
    expected = model.state_dict()
    head = found.get("head.weight")
    if head is not None and len(head) != model.head.out_features:
        found = {name: value for name, value in found.items() if not name.startswith("head.")}
    counters = {name for name in {*expected, *found} if name.endswith("num_batches_tracked")}
    missing = [name for name in expected if name not in found and not name.startswith(OWN_PARTS)]
    unexpected = [name for name in found if name not in expected]
    misshapen = [
        f"{name} is {tuple(found[name].shape)}, the model's is {tuple(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    complaints = [
        listed("missing", (name for name in missing if name not in counters)),
        listed("unexpected", (name for name in unexpected if name not in counters)),
        listed("of another shape", misshapen),
    ]
    if any(complaints):
        raise UsageError(
            f"pretrained={str(source)!r} does not fit {type(model).__name__}: {'; '.join(filter(None, complaints))}. "
            "Set stem, norm, width and the number of channels to those of the published model.",
            code="pretrained-unfit",
            source=str(source),
            missing=[name for name in missing if name not in counters],
            unexpected=[name for name in unexpected if name not in counters],
        )
    model.load_state_dict(found, strict=False)


def listed(title: str, names: Iterable[str]) -> str:
    """Return "2 missing: a, b", or "" where there are none."""
    all_names = list(names)
    rest = f" and {len(all_names) - SHOWN} more" if len(all_names) > SHOWN else ""
    return f"{len(all_names)} {title}: {', '.join(all_names[:SHOWN])}{rest}" if all_names else ""


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """Return the named tensors of a file, of a folder's weight file, or of a model on the Hugging Face hub."""
    path = find_weights(source)
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # a file that was made to break the reader ends in almost any error
        raise UsageError(
            f"cannot read weights from {path}: {why_unreadable(error)}. Give a .safetensors or .pth state dict.",
            code="file-unreadable",
            path=str(path),
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(
            f"{path} must hold a state dict, names to tensors; save model.state_dict() there.",
            code="file-unreadable",
            path=str(path),
        )
    return state


def why_unreadable(error: Exception) -> str:
    """Return why weights cannot be read; torch's own words about a pickle say how to run what is in it."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds something else than tensors, which could run code"
    return f"{type(error).__name__}: {error}"


def find_weights(source: str | Path) -> Path:
    """Return the weight file that a file name, a folder or a hub name stands for."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        preferred = [file for file in files if file.name == HUB_FILE] or files
        if len(preferred) != 1:
            raise UsageError(
                f"pretrained={str(source)!r} must hold {HUB_FILE} or one file that ends in {', '.join(SUFFIXES)}; "
                f"found {', '.join(file.name for file in files) or 'none'}. Name the file itself.",
                code="pretrained-unfit",
                source=str(source),
                found=tuple(file.name for file in files),
            )
        return preferred[0]
    if path.suffix in SUFFIXES or not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        raise UsageError(
            f"pretrained={str(source)!r} is not a file and not a folder; give one, or a hub name like "
            "timm/resnet18.a1_in1k.",
            code="file-missing",
            source=str(source),
        )
    return download(str(source))


def download(name: str) -> Path:
    """Return the weight file of a model on the Hugging Face hub, from the cache or the network."""
    ways = f"Give a folder or file of weights instead, or make {name!r} reachable over the network once."
    try:
        hub = importlib.import_module("huggingface_hub")
        hub_error = importlib.import_module("huggingface_hub.errors").HfHubHTTPError
    except ImportError as error:
        raise UsageError(
            f"pretrained={name!r} is not a file or folder, and reading it from the hub needs huggingface_hub: "
            f"pip install 'fedatlas[hub]'. {ways}",
            code="package-missing",
            package="huggingface_hub",
        ) from error
    try:
        return Path(hub.hf_hub_download(name, HUB_FILE))
    except (hub_error, OSError, ValueError) as error:
        raise UsageError(
            f"cannot load {HUB_FILE} of {name!r} from the hub: {error}. {ways}", code="source-unavailable", source=name
        ) from error

"""A run's trained network as files for use elsewhere: safetensors, ONNX, a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from fedatlas.adapting.export import about_network, export_onnx, make_folder, save_personalised
from fedatlas.config.reopen import run_algorithm
from fedatlas.data.dataset import DTYPES
from fedatlas.errors import UsageError, unknown_name
from fedatlas.models.hub import HubClassifier
from fedatlas.runs.files import atomic_write
from fedatlas.runs.run import Run
from fedatlas.training.model import Model

FORMS = ("safetensors", "onnx", "huggingface")


def export_run(
    run: Run,
    folder: Path | str,
    *,
    forms: tuple[str, ...] = ("safetensors",),
    client: str | int | None = None,
    group: int | None = None,
    network: Model | None = None,
) -> list[Path]:
    """Write a run's network in some forms, and return the files.

    It is the shared model, or that of a ``client`` with what the client keeps, or that of a ``group``. ``network`` is
    needed where the model was custom. ``safetensors`` goes to model.safetensors, which ``load_personalised`` reads;
    ``onnx`` to model.onnx; ``huggingface`` to the folder huggingface: the backbone as ``transformers.AutoModel`` reads
    it, and its head as head.safetensors. Inputs are to be scaled as the files' description says.
    """
    for form in forms:
        if form not in FORMS:
            raise unknown_name("form of an export", form, FORMS)
    folder = Path(folder)
    model = run.model(client, group=group, network=network).cpu()
    if "huggingface" in forms and not isinstance(model, HubClassifier):
        raise UsageError(
            f"a Hugging Face folder is for models from there (hf:NAME); {run.folder} trained "
            f"{run.resolved['model']['name']}. Use safetensors or onnx.",
            code="model-unfit",
            got=run.resolved["model"]["name"],
        )
    make_folder(folder)
    about = {"client": client, "group": group, **about_network(run, run_algorithm(run, None))}
    files = []
    if "safetensors" in forms:
        files.append(save_personalised(model, about, folder / "model.safetensors"))
    if "onnx" in forms:
        files.append(export_onnx(model, _example(run), about, folder / "model.onnx"))
    if "huggingface" in forms:
        assert isinstance(model, HubClassifier)
        files.append(_save_backbone(model, about, folder / "huggingface"))
    return files


def _example(run: Run) -> Tensor:
    """Return two examples of zeros in the form of a batch."""
    form = run.resolved["federation"]
    tokens = DTYPES[form["kind"]] == torch.int64
    return torch.zeros(2, *form["form"]["shape"], dtype=torch.int64 if tokens else torch.float32)


def _save_backbone(model: HubClassifier, about: dict[str, Any], folder: Path) -> Path:
    backbone: Any = model.backbone
    classes = about["classes"]
    backbone.config.id2label = dict(enumerate(classes))
    backbone.config.label2id = {name: number for number, name in enumerate(classes)}
    backbone.save_pretrained(folder)
    head: nn.Linear = model.head
    tensors = {"weight": head.weight.detach().contiguous().clone(), "bias": head.bias.detach().contiguous().clone()}
    told = {**about, "pooling": model.pooling, "image_size": model.image_size}
    atomic_write(folder / "head.safetensors", save_tensors(tensors, metadata={"fedatlas": json.dumps(told)}))
    return folder

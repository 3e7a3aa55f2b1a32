"""Export a federation: each client's examples as one file or one folder, as a node would have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.runs.files import inside


def write_npz(federation: Federation, client: int, path: Path | str) -> Path:
    """Write one client's training and test examples to an npz file that a node can take as its data."""
    path = Path(path)
    data, member = federation.data, federation.clients[client]
    if member.transform is not None:
        raise UsageError(
            f"client {member.name} has a transform that changes its images when they are read; an npz file cannot "
            "hold it. Export a federation without transforms.",
            code="content-unfit",
            client=member.name,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"train": member.train.cpu(), "test": member.test.cpu()}
    arrays = {f"x_{part}": data.inputs[own].cpu().numpy() for part, own in parts.items() if len(own)}
    arrays |= {f"y_{part}": data.labels[own].cpu().numpy() for part, own in parts.items() if len(own)}
    arrays |= {"classes": np.array(data.classes)}
    if data.vocabulary:
        arrays |= {"vocabulary": np.array(data.vocabulary)}
    if data.mean:
        arrays |= {"mean": np.array(data.mean), "std": np.array(data.std)}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def write_pictures(federation: Federation, client: int, folder: Path | str) -> Path:
    """Write one client's images as ``folder/train/CLASS/*.png`` and ``folder/test/CLASS/*.png``."""
    folder = Path(folder)
    data, member = federation.data, federation.clients[client]
    if data.kind != "image":
        raise UsageError(
            f"{data.name} holds {data.kind}, which cannot be written as pictures; use write_npz.",
            code="kind-mismatch",
            got=data.kind,
        )
    for part, own in (("train", member.train), ("test", member.test)):
        for i in own.tolist():
            into = inside(folder / part, data.classes[int(data.labels[i])])
            into.mkdir(parents=True, exist_ok=True)
            pixels = data.inputs[i].permute(1, 2, 0).cpu().numpy()
            Image.fromarray(pixels.squeeze() if pixels.shape[2] == 1 else pixels).save(into / f"{i:06d}.png")
    return folder

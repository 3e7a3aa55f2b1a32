"""Some examples of a client: a strip of small pictures, or rows of its table."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fedatlas.data.federation import Federation
from fedatlas.data.loading.npz import read_npz
from fedatlas.errors import DataError, RunFolderError
from fedatlas.runs.example_rows import client_rows
from fedatlas.runs.previews import LARGEST_SIDE, MOST_EXAMPLES, MOST_PICTURED, PORTRAITS, client_examples
from fedatlas.runs.run import Run

MOST_BYTES = 240_000
"""Of all pictures on a page."""
SIDES = (48, 32, 24)
"""Heights of a picture, the first that lets all strips fit."""


class Previews(NamedTuple):
    """What is known of the look of clients' data, by their position."""

    images: Mapping[int, np.ndarray]
    """uint8 (count, channels, height, width)"""
    labels: Mapping[int, Sequence[int]]
    """The class of each image; empty where it is not known."""
    vectors: np.ndarray | None = None
    """float32 (clients, width): a plain vector of each client's data."""
    rows: Mapping[int, np.ndarray] = MappingProxyType({})
    """Of tables and texts: rows as texts, as ``client_rows`` returns them."""
    tested: np.ndarray | None = None
    """int (clients, classes): test examples of each class, where they are known."""


NOTHING = Previews({}, {})


def read_previews(run: Run) -> Previews:
    """Return the previews that a run kept; none where it kept none."""
    path = run.folder / PORTRAITS
    if not path.exists():
        return NOTHING
    images: dict[int, np.ndarray] = {}
    labels: dict[int, Sequence[int]] = {}
    rows: dict[int, np.ndarray] = {}
    try:
        file = read_npz(path)
        vectors = file["vectors"]
        if vectors.ndim != 2 or vectors.dtype.kind != "f" or not np.isfinite(vectors).all():
            raise ValueError(f"vectors are {vectors.dtype} of the shape {vectors.shape}, or not finite")
        tested = file.get("tested")
        if tested is not None and (tested.ndim != 2 or len(tested) != len(vectors) or tested.dtype.kind not in "iu"):
            raise ValueError(f"labels of tests are {tested.dtype} of the shape {tested.shape}")
        if "images" in file:
            clients = [int(i) for i in file["pictured"]]
            _check_images(file["images"])
            images = dict(zip(clients, file["images"], strict=True))
            if "labels" in file and file["labels"].dtype.kind == "i":
                labels = dict(zip(clients, file["labels"].tolist(), strict=True))
        elif "rows" in file:
            if file["rows"].ndim != 3 or file["rows"].dtype.kind != "U":
                raise ValueError(f"rows are {file['rows'].dtype} of the shape {file['rows'].shape}")
            rows = dict(zip([int(i) for i in file["pictured"]], file["rows"], strict=True))
    except (DataError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}); delete it to report without it.", code="file-unreadable", path=str(path)
        ) from error
    expected = len(run.resolved["federation"]["clients"])
    if len(vectors) != expected or any(not 0 <= i < expected for i in (*images, *rows)):
        raise RunFolderError(
            f"{path} is of {len(vectors)} clients, the run has {expected}; delete it to report without it.",
            code="wrong-count",
            path=str(path),
            got=len(vectors),
            wanted=expected,
        )
    return Previews(images, labels, vectors, rows, tested)


def _check_images(images: np.ndarray) -> None:
    """Raise ValueError if pictures are not as a run keeps them: few, small and of bytes."""
    most = (MOST_PICTURED, MOST_EXAMPLES, images.size, LARGEST_SIDE, LARGEST_SIDE)
    fits = images.ndim == len(most) and all(0 < n <= top for n, top in zip(images.shape, most, strict=True))
    if images.dtype != np.uint8 or not fits:
        raise ValueError(f"images are {images.dtype} of the shape {images.shape}")


def previews_of(federation: Federation, clients: Sequence[int]) -> Previews:
    """Return images or rows of some clients of a federation; none where its data are neither."""
    found = client_examples(federation, clients)
    if found is None:
        rows = client_rows(federation, clients)
        return NOTHING if rows is None else Previews({}, {}, None, dict(zip(clients, rows, strict=True)))
    images, labels = found
    return Previews(
        dict(zip(clients, images, strict=True)), dict(zip(clients, (row.tolist() for row in labels), strict=True))
    )


def strips_block(previews: Previews, shown: np.ndarray, first: Sequence[int]) -> dict[str, Any]:
    """Return strips of pictures by the client's position on the page, as many as fit; some clients come first."""
    place = {int(i): j for j, i in enumerate(shown)}
    order = [i for i in dict.fromkeys([*first, *previews.images]) if i in previews.images and i in place]
    if not order:
        return {}
    side = SIDES[-1]
    for side in SIDES:
        sizes = [len(_strip(previews.images[i], side)[0]) for i in order[:5]]
        if np.mean(sizes) * len(order) <= MOST_BYTES:
            break
    found, spent = {}, 0
    for i in order:
        data, count = _strip(previews.images[i], side)
        spent += len(data)
        if spent > MOST_BYTES:
            break
        found[str(place[i])] = {
            "image": data,
            "count": count,
            "labels": [k for k in previews.labels.get(i, ()) if k >= 0],
        }
    return found


def rows_block(previews: Previews, shown: np.ndarray, first: Sequence[int]) -> dict[str, Any]:
    """Return rows of tables by the client's position on the page, as many as fit; some clients come first."""
    place = {int(i): j for j, i in enumerate(shown)}
    found, spent = {}, 0
    for i in dict.fromkeys([*first, *previews.rows]):
        if i not in previews.rows or i not in place:
            continue
        head, *rows, own, others = [[str(cell) for cell in row] for row in previews.rows[i]]
        wide = max(1, sum(bool(name) for name in head))
        kept = {
            "columns": head[:wide],
            "rows": [row[:wide] for row in rows if any(row)],
            "here": own[:wide],
            "others": others[:wide],
        }
        spent += sum(len(cell) for row in (head, *rows, own, others) for cell in row)
        if spent > MOST_BYTES:
            break
        found[str(place[i])] = kept
    return found


def _strip(images: np.ndarray, side: int) -> tuple[str, int]:
    """Return the images side by side as a data URL, and how many there are; filled-up places are left out."""
    kept = [image for image in images if not bool((image == 255).all())] or [images[0]]
    height, width = kept[0].shape[1:]
    scale = min(1.0, side / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    pictures = [_picture(image).resize(size, Image.Resampling.BILINEAR) for image in kept]
    strip = Image.new(pictures[0].mode, (size[0] * len(pictures), size[1]))
    for i, picture in enumerate(pictures):
        strip.paste(picture, (i * size[0], 0))
    buffer = io.BytesIO()
    strip.save(buffer, "WEBP", quality=70, method=4)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}", len(kept)


def _picture(image: np.ndarray) -> Image.Image:
    if image.shape[0] == 3:
        return Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    return Image.fromarray(np.ascontiguousarray(image[0])).convert("RGB")

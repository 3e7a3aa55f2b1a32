"""Text with a client for each line: a table becomes a Dataset of characters.

With a label column a text is classified; without one the next character is predicted, as LEAF does for Shakespeare.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.loading.cells import check_table_file, table_columns, table_rows
from fedatlas.errors import DataError, UsageError
from fedatlas.seeds import numpy_generator

LABEL = "label"


def read_texts(
    source: str | Path,
    *,
    text: str,
    client: str | None = "client",
    label: str | None = "auto",
    domain: str | None = None,
    name: str | None = None,
    **options: Any,
) -> Dataset:
    """Return a Dataset from a file with a text in each row; ``from_table`` describes the options."""
    file = check_table_file(source)
    if label == "auto":
        label = LABEL if LABEL in table_columns(file) else None
    columns = _read_table(file, text, [column for column in (client, label, domain) if column is not None])
    return from_texts(
        columns[text],
        clients=None if client is None else columns[client],
        labels=None if label is None else columns[label],
        domains=None if domain is None else columns[domain],
        name=name or file.stem,
        **options,
    )


def from_texts(
    texts: Sequence[str],
    *,
    clients: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
    context: int = 80,
    stride: int = 1,
    fraction: float = 1.0,
    seed: int = 0,
    name: str = "texts",
) -> Dataset:
    """Return a Dataset from texts, one client, label and domain for each; see ``from_table``."""
    whole = isinstance(context, int) and isinstance(stride, int) and isinstance(fraction, int | float)
    if not whole or context < 1 or stride < 1 or not 0 < fraction <= 1:
        raise UsageError(
            f"{name}: context and stride must be whole numbers of at least 1 and fraction in (0, 1]; "
            f"got context={context!r}, stride={stride!r}, fraction={fraction!r}.",
            code="out-of-range",
            context=context,
            stride=stride,
            fraction=fraction,
        )
    for title, values in (("clients", clients), ("labels", labels), ("domains", domains)):
        if values is not None:
            _check_column(name, title, values, len(texts))
    owner, owners = _numbered(clients if clients is not None else [""] * len(texts))
    kept = _draw_clients(owner, len(owners), [len(line) for line in texts], fraction, seed)
    if not len(kept):
        raise DataError(f"{name}: there are no texts. Check the column of the text.", code="data-empty", what="texts")
    lines = [texts[i] for i in kept]
    owner, owners = _numbered([owners[i] for i in owner[kept]])
    domain, domain_names = _numbered([domains[i] for i in kept] if domains is not None else [""] * len(kept))
    if labels is not None:
        characters, tokens = _padded(name, lines, context)
        targets, classes = _numbered([labels[i] for i in kept], in_order=True)
        row = np.arange(len(lines))
        vocabulary: tuple[str, ...] = ("", *characters)
    else:
        vocabulary, tokens, targets, row = _windows(name, lines, owner, owners, context, stride)
        classes = vocabulary
    present, owner_of_row = np.unique(owner[row], return_inverse=True)
    return Dataset(
        name=name,
        inputs=torch.from_numpy(tokens),
        labels=torch.from_numpy(targets),
        classes=classes,
        owners=tuple(owners[i] for i in present) if clients is not None else (),
        owner=torch.from_numpy(owner_of_row) if clients is not None else None,
        domains=domain_names if domains is not None else (),
        domain=torch.from_numpy(domain[row]) if domains is not None else None,
        vocabulary=vocabulary,
    )


def _read_table(file: Path, text: str, names: list[str]) -> dict[str, list[str]]:
    """Return the columns of the texts and of names; a text may be empty, a name may not."""
    columns: dict[str, list[str]] = {column: [] for column in (text, *names)}
    for number, row in enumerate(table_rows(file), start=1):
        for column, values in columns.items():
            if not isinstance(row, dict) or column not in row:
                present = ", ".join(map(repr, row)) if isinstance(row, dict) else f"missing: {row!r}"
                raise DataError(
                    f"{file}: row {number} has no {column!r}; its columns are {present}. Name the columns with "
                    "text=, client=, label= and domain=; in a config, data.text and so on.",
                    code="value-missing",
                    columns=list(row) if isinstance(row, dict) else [],
                    path=str(file),
                    column=column,
                    row=number,
                )
            value = row[column]
            if value is None or (column in names and not str(value).strip()):
                raise DataError(
                    f"{file}: row {number}: no {column}. Fill it in, or leave the row out.",
                    code="value-missing",
                    path=str(file),
                    column=column,
                    row=number,
                )
            values.append(str(value))
    if not columns[text]:
        raise DataError(f"{file}: the table has no rows.", code="data-empty", path=str(file), what="rows")
    return columns


def _check_column(name: str, title: str, values: Sequence[str], count: int) -> None:
    """Raise DataError if there is not one value for each text, or if one is empty."""
    if len(values) != count:
        raise DataError(
            f"{name}: {len(values)} {title} for {count} texts; give one each.",
            code="wrong-count",
            what=title,
            got=len(values),
            wanted=count,
        )
    empty = next((i for i, value in enumerate(values) if value == ""), None)
    if empty is not None:
        raise DataError(
            f"{name}: entry {empty + 1} of {title} is an empty text. Fill it in, or drop the text.",
            code="value-missing",
            what=title,
            row=empty + 1,
        )


def _numbered(names: Sequence[str], in_order: bool = False) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return a number for each name and the names, in order of first appearance or of the alphabet."""
    known = sorted(set(names)) if in_order else list(dict.fromkeys(names))
    place = {name: i for i, name in enumerate(known)}
    return np.fromiter((place[name] for name in names), np.int64, len(names)), tuple(known)


def _draw_clients(
    owner: NDArray[np.int64], num_owners: int, lengths: list[int], fraction: float, seed: int
) -> NDArray[np.int64]:
    """Return the rows of the clients that are drawn until they hold a share of the text."""
    if fraction == 1:
        return np.arange(len(owner))
    held = np.bincount(owner, weights=lengths, minlength=num_owners)
    order = numpy_generator(seed, "text", "clients").permutation(num_owners)
    enough = np.searchsorted(held[order].cumsum(), fraction * held.sum()) + 1
    return np.flatnonzero(np.isin(owner, order[:enough]))


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _padded(name: str, lines: list[str], context: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the characters, and each text as tokens from 1, cut or padded with 0 to one length."""
    points = [_code_points(line[:context]) for line in lines]
    empty = next((i for i, line in enumerate(points) if len(line) == 0), None)
    if empty is not None:
        raise DataError(f"{name}: text {empty + 1} is empty. Drop it.", code="data-empty", row=empty + 1)
    used = np.unique(np.concatenate(points))
    tokens = np.zeros((len(lines), context), np.int64)
    for i, line in enumerate(points):
        tokens[i, : len(line)] = np.searchsorted(used, line) + 1
    return tuple(chr(point) for point in used), tokens


def _windows(
    name: str, lines: list[str], owner: NDArray[np.int64], owners: Sequence[str], context: int, stride: int
) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the characters, the windows, the character after each, and the first row each window's client has."""
    joined: dict[int, list[str]] = {}
    first: dict[int, int] = {}
    for i, (line, who) in enumerate(zip(lines, owner.tolist(), strict=True)):
        joined.setdefault(who, []).append(line)
        first.setdefault(who, i)
    points = {who: _code_points(" ".join(parts)) for who, parts in joined.items()}
    short = [who for who, text in points.items() if len(text) <= context]
    if len(short) == len(points):
        longest = max(len(text) for text in points.values())
        raise DataError(
            f"{name}: no client has more than {context} characters, the longest text has {longest}. "
            "Give a smaller context=.",
            code="too-few-examples",
            longest=longest,
            context=context,
        )
    if short:
        few = first_few([f"{owners[who]} ({len(points[who])})" for who in short])
        warnings.warn(
            f"{name}: {len(short)} of {len(points)} clients have no more than {context} characters and are left out: "
            f"{few}. Give a smaller context= to keep them.",
            stacklevel=3,
        )
        points = {who: text for who, text in points.items() if len(text) > context}
    used = np.unique(np.concatenate(list(points.values())))
    tokens, targets, rows = [], [], []
    for who, text in points.items():
        coded = np.searchsorted(used, text)
        tokens.append(np.lib.stride_tricks.sliding_window_view(coded[:-1], context)[::stride])
        targets.append(coded[context::stride])
        rows.append(np.full(len(targets[-1]), first[who]))
    return tuple(chr(p) for p in used), np.concatenate(tokens), np.concatenate(targets), np.concatenate(rows)

"""A table as a Dataset: of texts where it has a column of texts, else of numbers and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from fedatlas.data.dataset import Dataset
from fedatlas.data.loading.cells import Frame, read_cells, table_columns
from fedatlas.data.loading.measurements import from_cells
from fedatlas.data.loading.texts import read_texts
from fedatlas.errors import UsageError

TEXT = "text"
_OF_TEXTS = ("context", "stride", "fraction")
_OF_NUMBERS = ("id", "classes", "categorical", "drop", "task")


class TableOptions(TypedDict, total=False):
    """How a table is read; a column that is None does not exist, and one that is not given is looked for."""

    client: str | None
    label: str | Sequence[str] | None
    """A column; of several numbers or labels that are predicted, one each."""
    domain: str | None
    id: str | None
    """Of numbers: the column that names each row; it is not an input."""
    classes: Mapping[str, Sequence[Any]] | Sequence[str] | None
    """Of numbers: the labels of each class, such as ``{"healthy": [0], "ill": [1, 2, 3, 4]}``, or all classes."""
    categorical: Sequence[str]
    """Of numbers: columns whose numbers are codes of categories."""
    drop: Sequence[str]
    """Of numbers: columns that are not used."""
    task: str
    """Of numbers: what is predicted: ``classification``, ``regression`` or ``multi-label``."""
    context: int
    """Of texts: characters that a model sees."""
    stride: int
    """Of texts: characters from one window to the next."""
    fraction: float
    """Of texts: the share of the text that is used."""


def from_table(
    source: str | Path | Frame,
    *,
    text: str | None = None,
    name: str | None = None,
    seed: int = 0,
    **options: Unpack[TableOptions],
) -> Dataset:
    """Return a Dataset from a table: a csv, tsv, jsonl or Parquet file, or a pandas frame.

    A table with a column ``text``, or one that ``text=`` names, holds texts. Any other holds measurements: its columns
    of numbers and of categories are the inputs. ``client``, ``label`` and ``domain`` name columns; those that are not
    given are found by their usual names, such as ``hospital`` or ``diagnosis``, and ``Dataset.remarks`` says which.

    *Measurements.* Missing cells stay missing in ``Dataset.table``. ``federate`` makes the inputs from it, scaled by
    the means and standard deviations over all clients' training rows. ``classes`` joins labels to classes.

    *Texts.* With labels the first ``context`` characters of a text are classified, shorter texts are padded with
    token 0. Without labels, or with ``label=None``, a client's texts are joined by blanks and cut into windows of
    ``context`` characters, one every ``stride`` characters, each with the next character as label; a client with too
    little text for one is left out with a warning, and a client's domain is that of its first row. ``fraction`` below 1
    draws clients until they hold that share of the text (LEAF's ``--sf``). A window takes 8 bytes a character, so a
    megabyte of text at stride 1 takes 640 megabytes.
    """
    frame = isinstance(source, Frame)
    names = [str(column) for column in source.columns] if isinstance(source, Frame) else table_columns(source)
    is_text = text is not None or (TEXT in names and not frame)
    if unfit := [key for key in (_OF_NUMBERS if is_text else _OF_TEXTS) if key in options]:
        where, kind = name or ("frame" if frame else str(source)), "texts" if is_text else "numbers"
        raise UsageError(
            f"{where}: {', '.join(unfit)} cannot be set for a table of {kind}. Leave it out.",
            code="option-unfit",
            settings=tuple(unfit),
            source=where,
        )
    if is_text:
        if isinstance(source, Frame):
            raise UsageError(
                "texts are read from a file; for texts in memory, use fedatlas.data.from_texts.",
                code="wrong-type",
                setting="text",
            )
        return read_texts(source, text=text or TEXT, name=name, seed=seed, **options)  # type: ignore[arg-type]
    return from_cells(read_cells(source, name), **options)

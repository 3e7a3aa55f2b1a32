"""How much each client counted in each round, for the page's pictures over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedatlas.report.packing import pack
from fedatlas.runs.run import Run

MOST_ROUNDS = 40
"""Rounds of which a page has every client's weight."""
WEIGHT_BYTES = 120_000
"""Of all algorithms' weights together."""
ABSENT = 255
"""In place of the weight of a client that did not train in a round."""


def weights_block(run: Run, names: Sequence[str], shown: np.ndarray, algorithms: int = 1) -> dict[str, Any] | None:
    """Return the weights of the shown clients at evenly spaced rounds; None where the run records none.

    A weight is the client's share in the mean that the server makes: of all clients that trained in the round, or of
    those whose model it shares.
    """
    numbers = [int(entry["round"]) for entry in run.rounds]
    most = max(2, min(MOST_ROUNDS, WEIGHT_BYTES // (max(len(shown), 1) * max(algorithms, 1))))
    chosen = spaced(numbers, most)
    row = {number: i for i, number in enumerate(chosen)}
    column = {names[i]: j for j, i in enumerate(shown.tolist())}
    table = np.full((len(chosen), len(shown)), np.nan)
    for line in run.clients:
        i, j = row.get(line["round"]), column.get(line["client"])
        if i is not None and j is not None:
            table[i, j] = line.get("weight", np.nan)
    largest = float(np.nanmax(table)) if np.isfinite(table).any() else 0.0
    if largest <= 0:
        return None
    scaled = np.where(np.isfinite(table), (ABSENT - 1) * np.nan_to_num(table).clip(min=0) / largest, ABSENT)
    return {"rounds": chosen, "largest": largest, "table": pack(scaled, "u8")}


def spaced(numbers: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the numbers, evenly, the first and the last among them.

    >>> spaced(range(1, 11), 4)
    [1, 4, 7, 10]
    """
    if len(numbers) <= most:
        return list(numbers)
    places = np.linspace(0, len(numbers) - 1, most).round().astype(int)
    return [numbers[i] for i in places]

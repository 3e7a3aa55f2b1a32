"""What leaves a client that holds a table of measurements, once: the sums that scale every client's columns alike."""

from __future__ import annotations

import torch

from fedatlas.parts.disclosure import Disclosure

TABLE_SUMS: tuple[Disclosure, ...] = (
    Disclosure("count", "how many cells of each column hold a value", "hello", (None,), torch.int64),
    Disclosure("missing", "how many cells of each column are missing", "hello", (None,), torch.int64),
    Disclosure("total", "the sum of each column of numbers", "hello", (None,), torch.float64),
    Disclosure("squares", "the sum of squares of each column of numbers", "hello", (None,), torch.float64),
    Disclosure("categories", "which categories occur in each column of categories", "hello", (None,), torch.uint8),
)
"""The fields of ``fedatlas.data.table.ColumnSums``, over the client's training rows; held-out clients send zeros."""

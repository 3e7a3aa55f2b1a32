"""The shapes that replies must have: the network gives the change's, the parts declare all others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from fedatlas.client.model import Workbench
from fedatlas.data.task import CLASSIFICATION
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.disclosure import Declared, Dimensions, Shapes, declared, shapes
from fedatlas.parts.metric import Metric, always, make_metrics


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """The tensors of every kind of reply."""

    change: Shapes
    buffers: Shapes
    notes: Declared = Declared()
    surveys: Declared = Declared()
    introductions: Declared = Declared()
    losses: Shapes = field(default_factory=dict)
    """The fields of a client's losses under several models, where they are asked for."""
    metrics: tuple[Metric, ...] = always(CLASSIFICATION)
    """The metrics that every score holds."""
    num_classes: int = 0
    """How many numbers a metric by class has."""


def expected_replies(
    algorithm: Algorithm, network: nn.Module, form: DataForm, metrics: Sequence[str | Metric] = ()
) -> Expectations:
    """Return the shapes of all that an algorithm's clients will send."""
    bench = Workbench(copy.deepcopy(network), algorithm)
    shared, buffers = bench.shared()
    dimensions = Dimensions.of(bench.model, shared, form.shape, len(form.classes))
    return Expectations(
        change=shapes(shared),
        buffers=shapes(buffers),
        notes=declared(algorithm.parts(), "upload", dimensions),
        surveys=declared(algorithm.parts(), "survey", dimensions),
        introductions=declared(algorithm.parts(), "introduction", dimensions),
        losses=declared([algorithm.sharing], "losses", dimensions).shapes.get(algorithm.sharing.name, {}),
        metrics=(*always(form.task), *make_metrics(metrics, form.task)),
        num_classes=len(form.classes),
    )

"""What there is, one line each: the first line of each docstring."""

import inspect
from collections.abc import Callable

from fedatlas.algorithms import ALGORITHMS, build_algorithm, standalone
from fedatlas.atlas import ENCODERS, SOURCES, atlas_disclosures
from fedatlas.atlas.client2vec.settings import STRATEGIES
from fedatlas.data import DATASETS, PARTITIONS
from fedatlas.models import HUB_PREFIX, MODELS
from fedatlas.parts.disclosure import words
from fedatlas.parts.optimizer import OPTIMIZERS


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n")[0].replace("``", "")


CATALOGUES: dict[str, Callable[[], dict[str, str]]] = {
    "algorithms": lambda: {name: _first_line(recipe) for name, recipe in ALGORITHMS.items()},
    "datasets": lambda: {name: entry.description for name, entry in DATASETS.items()},
    "partitions": lambda: {name: _first_line(partition) for name, partition in PARTITIONS.items()},
    "models": lambda: {
        **{name: _first_line(builder) for name, builder in MODELS.items()},
        f"{HUB_PREFIX}NAME": "any Hugging Face image backbone by name or folder, on images (needs the extra hub)",
    },
    "atlases": lambda: {name: _first_line(source) for name, source in SOURCES.items()},
    "encoders": lambda: {name: _first_line(encoder) for name, encoder in ENCODERS.items()},
    "optimizers": lambda: {name: _first_line(optimizer) for name, optimizer in OPTIMIZERS.items()},
}
NOTES = {
    "algorithms": "client2vec is any of them with an atlas of the clients: train --atlas FILE --use sample,aggregate",
}
"""What is said under a list."""


def disclosures_by_algorithm() -> dict[str, str]:
    """Return what leaves a client beyond its number of examples and the model's change; and for an atlas of clients."""
    lines = {name: words(build_algorithm(name).disclosures()) for name in standalone()}
    for source in SOURCES:
        strategies = STRATEGIES if source == "client2vec" else ("",)
        lines |= {
            f"map {source} {strategy}".rstrip(): words(atlas_disclosures(source, strategy or "global"))
            for strategy in strategies
        }
    return {name: "; ".join(said) if said else "nothing beyond the change of the model" for name, said in lines.items()}

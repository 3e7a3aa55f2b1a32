"""The things that commands take by name, with the first line of each docstring, read from the files' text."""

from collections.abc import Callable
from typing import Any

from fedatlas.algorithms.registry import ALGORITHMS, build_algorithm, standalone
from fedatlas.atlas.encoders.registry import ENCODERS
from fedatlas.atlas.registry import SOURCES
from fedatlas.config.checks import atlas_recipe
from fedatlas.config.listing import settings_lines
from fedatlas.data.loading.catalogue import DATASETS
from fedatlas.data.partitions.registry import PARTITIONS
from fedatlas.models.registry import HUB_PREFIX, MODELS
from fedatlas.parts.registry import METRICS, OPTIMIZERS
from fedatlas.registry import Registry


def _summaries(registry: Registry[Any], names: list[str] | None = None) -> dict[str, str]:
    entries = registry.entries
    return {name: entries[name].summary.replace("``", "") for name in names or entries}


CATALOGUES: dict[str, Callable[[], dict[str, str]]] = {
    "algorithms": lambda: _summaries(ALGORITHMS, standalone()),
    "datasets": lambda: {name: entry.description for name, entry in DATASETS.items()},
    "partitions": lambda: _summaries(PARTITIONS),
    "models": lambda: {
        **_summaries(MODELS),
        f"{HUB_PREFIX}NAME": "any Hugging Face image backbone by name or folder, on images (needs the extra hub)",
    },
    "atlases": lambda: _summaries(SOURCES),
    "encoders": lambda: _summaries(ENCODERS),
    "optimizers": lambda: _summaries(OPTIMIZERS),
    "metrics": lambda: _summaries(METRICS),
    "settings": settings_lines,
}
NOTES: dict[str, Callable[[], str]] = {
    "algorithms": lambda: (
        f"{atlas_recipe().name} is any of them with an atlas of the clients: train --atlas FILE --use sample,aggregate"
    ),
    "settings": lambda: "[model], [algorithm], [optimizer] and [atlas] also take the options of what they name.",
}
"""The line under a list."""


def disclosures_by_algorithm() -> dict[str, str]:
    """Return what leaves a client beyond its number of examples and the model's change; and for an atlas of clients."""
    from fedatlas.atlas.doctor.figures import FIGURES, HASHES
    from fedatlas.atlas.sources import disclosures_by_source
    from fedatlas.atlas.summary import summary_disclosures
    from fedatlas.config.schema import NEWCOMER_TELLS
    from fedatlas.parts.disclosure import words
    from fedatlas.parts.table_sums import TABLE_SUMS

    lines = {name: words(build_algorithm(name).disclosures()) for name in standalone()}
    lines["tables"] = [f"of a table of measurements, once: {', '.join(words(TABLE_SUMS))}"]
    lines["adapt"] = [NEWCOMER_TELLS]
    lines["check"] = words([*summary_disclosures(), *FIGURES])
    lines["check, copies"] = words([HASHES])
    lines |= {f"map {name}": words(said) for name, said in disclosures_by_source().items()}
    return {name: "; ".join(said) if said else "nothing beyond the change of the model" for name, said in lines.items()}

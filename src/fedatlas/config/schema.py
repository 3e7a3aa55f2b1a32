"""Of what type each setting of a config is: mostly that of the field or parameter that it goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.client2vec import client2vec
from fedatlas.atlas.client2vec.settings import IndexSettings
from fedatlas.atlas.settings import AtlasSettings
from fedatlas.client.work import LocalWork
from fedatlas.config.types import check_options, check_value
from fedatlas.data import PARTITIONS, Augment, federate
from fedatlas.errors import UsageError
from fedatlas.models import HUB_PREFIX, MODELS
from fedatlas.models.hub import hub_backbone
from fedatlas.parts.optimizer import OPTIMIZERS
from fedatlas.parts.split import Buffers
from fedatlas.seeds import Seeds
from fedatlas.training.settings import TrainingPlan

ATLAS_OPTIONS = {
    key: kind
    for key, kind in get_type_hints(client2vec).items()
    if key not in ("base", "atlas", "sample", "aggregate", "train", "return")
}
"""Client2Vec's own options, which [atlas] takes beside file, make and use."""
_FEDERATE = get_type_hints(federate)
TYPES: dict[str, Any] = {
    "seed": int,
    "seeds": dict.fromkeys(get_type_hints(Seeds), int | None),
    "data": {
        "source": str | Path,
        "folder": str | Path | None,
        "domains": Sequence[str] | None,
        **dict.fromkeys(("mean", "std"), Sequence[float] | None),
        "partition": str | Mapping[str, Any] | None,
        "test": str | None,
        **{key: _FEDERATE[key] for key in ("test_fraction", "held_out")},
        "folds": int | None,
        "fold": int,
        **dict.fromkeys(("text", "client", "label", "domain"), str | None),
        **dict.fromkeys(("context", "stride"), int | None),
        "fraction": float | None,
        "size": int | Sequence[int] | None,
    },
    "atlas": {
        "file": str | Path | None,
        "use": Sequence[str],
        **ATLAS_OPTIONS,
    },
    "training": {
        **get_type_hints(LocalWork),
        **get_type_hints(TrainingPlan),
        "augment": Mapping[str, Any] | None,
        "buffers": Buffers | None,
        "equal_weights": bool,
    },
    "flower": {
        "clients": int | Sequence[str] | None,
        "minimum": int | float,
        "deadline": float,
        "wait": float,
        "insecure": bool,
        "adapt": Mapping[str, Any],
    },
}
"""Of what type each key is, where that does not depend on a name."""


def check_types(values: Mapping[str, Any]) -> None:
    """Refuse values of the wrong type, by key, before anything is built of them."""
    for section, kinds in TYPES.items():
        if not isinstance(kinds, Mapping):
            check_value(section, values[section], kinds)
            continue
        for key, kind in kinds.items():
            if key in values[section]:
                check_value(f"{section}.{key}", values[section][key], kind)
    partition, augment, make = values["data"]["partition"], values["training"]["augment"], values["atlas"]["make"]
    if isinstance(partition, Mapping):
        _check_named("data.partition", partition, PARTITIONS)
    if augment is not None:
        check_options("training.augment", augment, Augment)
    if make is not None:
        if not isinstance(make, Mapping):
            raise UsageError(
                f"atlas.make is a table that says how to make an atlas, got {make!r}. Give e.g. "
                '{ source = "label-histogram" }; a file goes into atlas.file.'
            )
        check_options("atlas.make", make, AtlasSettings)
        check_value("atlas.make.settings", make.get("settings"), Mapping[str, Any] | None)
        check_options("atlas.make.settings", make.get("settings") or {}, IndexSettings)
    check_model(values["model"])
    _check_named("optimizer", values["optimizer"], OPTIMIZERS)
    _check_recipe("algorithm", values["algorithm"])
    for name, options in values["algorithms"].items():
        check_value(f"algorithms.{name}", options, Mapping[str, Any])
        _check_recipe(f"algorithms.{name}", {"name": name, **options})


def check_model(options: Mapping[str, Any]) -> None:
    """Refuse options of the wrong type for the model that is named; where none is, that waits for the data."""
    models = dict(MODELS)
    if str(name := options["name"]).startswith(HUB_PREFIX):
        models[name] = hub_backbone
    _check_named("model", options, models)


def _check_recipe(where: str, options: Mapping[str, Any]) -> None:
    """Check the options of a recipe, and of its base where that has some."""
    _check_named(where, options, ALGORITHMS)
    if isinstance(base := options.get("base"), Mapping):
        if "name" not in base:
            raise UsageError(f"{where}.base is a name or a table with a name and options, got {dict(base)}.")
        _check_recipe(f"{where}.base", base)


def _check_named(where: str, options: Mapping[str, Any], known: Mapping[str, Callable[..., Any]]) -> None:
    """Check a table against what it names; a name that is not known is told when it is built."""
    check_value(f"{where}.name", name := options.get("name"), str | None)
    if name is not None and name in known:
        check_options(where, options, known[name])

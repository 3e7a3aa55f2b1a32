"""The checks of a config before anything is built of it: its keys, its names and the types of its values.

All but the last import nothing of what is named: names and options are read from the registries' files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.algorithms.user_function import check_allowed
from fedatlas.atlas.encoders.registry import ENCODERS
from fedatlas.atlas.registry import SOURCES
from fedatlas.atlas.settings import TABLES, AtlasSettings
from fedatlas.config.schema import SETTINGS, USES, NewcomerTuning
from fedatlas.data.partitions.registry import PARTITIONS
from fedatlas.errors import UsageError, unknown_name
from fedatlas.models.registry import HUB_PREFIX, MODELS
from fedatlas.parts.checks import check_options, check_value
from fedatlas.parts.registry import METRICS, OPTIMIZERS
from fedatlas.registry import Entry, Registry

ATLAS_MAKE = [own.name for own in fields(AtlasSettings) if own.name != "seed"]
"""The keys of the table atlas.make."""
MODEL_ARGUMENTS = 2
"""A model's builder takes the number of classes and the form of inputs first; the rest are options."""


def atlas_recipe(use: str = USES[0]) -> Entry:
    """Return the recipe that uses an atlas so over any algorithm."""
    return next(one for one in ALGORITHMS.entries.values() if use in one.facts.get("uses", ()))


def atlas_options() -> list[str]:
    """Return the options of the first such recipe, which ``[atlas]`` takes beside its keys."""
    recipe = atlas_recipe()
    return [name for name in recipe.parameters if name not in (recipe.facts["over"], "atlas", *USES)]


def check_settings(values: Mapping[str, Any]) -> None:
    """Raise an error if a key that does not depend on a name has a value of the wrong type."""
    if (make := values["atlas"]["make"]) is not None and not isinstance(make, Mapping):
        raise UsageError(
            f"atlas.make is a table that says how to make an atlas, got {make!r}. Give e.g. "
            '{ source = "label-histogram" }; a file goes into atlas.file.',
            code="wrong-type",
            setting="atlas.make",
            got=make,
        )
    for key, one in SETTINGS.items():
        table = values[one.section] if one.section else values
        if one.name in table:
            check_value(key, table[one.name], one.kind, one.least)
    NewcomerTuning.of("flower.adapt", values["flower"]["adapt"])
    for name, options in values["algorithms"].items():
        check_value(f"algorithms.{name}", options, Mapping[str, Any])


def check_names(values: Mapping[str, Any]) -> None:
    """Raise an error if a name, or an option of the thing that it names, is not known."""
    for name, options in values["algorithms"].items():
        _check_recipe(f"algorithms.{name}", {"name": name, **options})
    chosen = values["algorithm"]
    if chosen["name"] not in values["algorithms"] or chosen["name"] in ALGORITHMS:
        _check_recipe("algorithm", chosen)
    _check_option_names(*_named("optimizer", values["optimizer"], OPTIMIZERS))
    _check_partition(values["data"]["partition"])
    _check_model(values["model"])
    for name in values["training"]["metrics"]:
        if name not in METRICS and ":" not in name:
            raise unknown_name(METRICS.kind, name, METRICS)
    _check_atlas_make(values["atlas"]["make"] or {})


def check_code(values: Mapping[str, Any]) -> None:
    """Raise an error if the algorithm, its base or a metric is a function that was not allowed on this machine."""
    for where, name in named_code(values).items():
        check_allowed(name, where)


def named_code(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the functions that a config names as algorithm or metrics, by key."""
    chosen = values["algorithm"]
    own = values["algorithms"].get(chosen["name"], {})
    own_metrics = [name for name in values["training"]["metrics"] if ":" in name]
    found = {f"training.metrics[{number}]": name for number, name in enumerate(own_metrics)}
    where = "algorithm"
    options: Mapping[str, Any] = {**own, **chosen, "name": own.get("name", chosen["name"])}
    while True:
        if ":" in str(options.get("name")):
            found[f"{where}.name"] = str(options["name"])
        base = options.get("base")
        if base is None:
            return found
        where, options = f"{where}.base", base if isinstance(base, Mapping) else {"name": base}


def check_types(values: Mapping[str, Any]) -> None:
    """Raise an error if an option is of the wrong type for the thing that it belongs to, which is imported for that."""
    from fedatlas.data.transforms import Augment

    partition, augment, make = values["data"]["partition"], values["training"]["augment"], values["atlas"]["make"]
    if isinstance(partition, Mapping):
        _check_types_of("data.partition", partition, PARTITIONS)
    if augment is not None:
        check_options("training.augment", augment, Augment)
    if make is not None:
        check_options("atlas.make", make, AtlasSettings)
        for key, kind in TABLES.items():
            check_value(f"atlas.make.{key}", make.get(key), Mapping[str, Any] | None)
            check_options(f"atlas.make.{key}", make.get(key) or {}, kind)
    hints = get_type_hints(ALGORITHMS[atlas_recipe().name])
    for key in values["atlas"].keys() & set(atlas_options()):
        check_value(f"atlas.{key}", values["atlas"][key], hints[key])
    check_model(values["model"])
    _check_types_of("optimizer", values["optimizer"], OPTIMIZERS)
    _check_types_of_recipe("algorithm", values["algorithm"])
    for name, options in values["algorithms"].items():
        _check_types_of_recipe(f"algorithms.{name}", {"name": name, **options})


def check_model(options: Mapping[str, Any]) -> None:
    """Raise an error if an option is of the wrong type for the model; where none is named, that waits for the data."""
    if str(options["name"]).startswith(HUB_PREFIX):
        from fedatlas.models.hub import hub_backbone

        check_options("model", options, hub_backbone)
    else:
        _check_types_of("model", options, MODELS)


def _check_recipe(where: str, options: Mapping[str, Any]) -> None:
    """Check the names of a recipe and its options, and of its base where that is given by name."""
    check_value(f"{where}.name", options["name"], str)
    if ":" in options["name"]:  # a user's function, which says its options when it is imported
        return
    _check_option_names(*_named(where, options, ALGORITHMS))
    recipe = ALGORITHMS.entries[options["name"]]
    base = options.get(recipe.facts.get("over", ""))
    if isinstance(base, Mapping):
        if "name" not in base:
            text = f"{where}.base is a name or a table with a name and options, got {dict(base)}."
            raise UsageError(text, code="missing-option", option="name", got=dict(base))
        _check_recipe(f"{where}.base", base)
    elif isinstance(base, str):
        _check_recipe(f"{where}.base", {"name": base})


def _check_partition(settings: Any) -> None:
    if settings is None:
        return
    options = {"name": settings} if isinstance(settings, str) else settings
    if "name" not in options:
        raise UsageError(
            f"data.partition needs a key name, got {', '.join(map(repr, options)) or 'an empty table'}. Give "
            f'{{ name = "...", ... }} with one of {", ".join(sorted(PARTITIONS))}.',
            code="missing-option",
            option="name",
        )
    _check_option_names(*_named("data.partition", options, PARTITIONS))


def _check_model(options: Mapping[str, Any]) -> None:
    name: Any = options.get("name")
    check_value("model.name", name, str | None)
    if name is None or name.startswith(HUB_PREFIX):
        return
    if name not in MODELS.entries:
        raise unknown_name(MODELS.kind, name, [*MODELS, f"{HUB_PREFIX}NAME_OR_FOLDER"])
    known = MODELS.entries[name].parameters[MODEL_ARGUMENTS:]
    for option in options:
        if option != "name" and option not in known:
            raise unknown_name(f"option of model {name!r}", option, known)


def _check_atlas_make(make: Mapping[str, Any]) -> None:
    for option in make:
        if option not in ATLAS_MAKE:
            raise unknown_name("option of atlas.make", option, ATLAS_MAKE)
    registries: dict[str, Registry[Any]] = {"source": SOURCES, "encoder": ENCODERS}
    for option, registry in registries.items():
        if isinstance(name := make.get(option), str) and name not in registry.entries:
            raise unknown_name(registry.kind, name, registry)


def _named(
    where: str, options: Mapping[str, Any], registry: Registry[Any]
) -> tuple[str, Mapping[str, Any], Sequence[str]]:
    """Return a table's name, the table, and the options of the thing that it names."""
    name: Any = options["name"]
    check_value(f"{where}.name", name, str)
    if name not in registry.entries:
        raise unknown_name(registry.kind, name, registry)
    return name, options, registry.entries[name].parameters


def _check_option_names(name: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    for option in options:
        if option != "name" and option not in known:
            if not known:
                text = f"{name} takes no options, got {option!r}."
                raise UsageError(text, code="unknown-name", kind=f"option of {name}", got=option, known=[])
            raise unknown_name(f"option of {name}", option, known)


def _check_types_of_recipe(where: str, options: Mapping[str, Any]) -> None:
    """Check the types of a recipe's options, and of its base's where that has some."""
    _check_types_of(where, options, ALGORITHMS)
    if isinstance(base := options.get("base"), Mapping):
        _check_types_of_recipe(f"{where}.base", base)


def _check_types_of(where: str, options: Mapping[str, Any], known: Mapping[str, Callable[..., Any]]) -> None:
    """Check a table's types against the thing that it names; a user's function is checked when it is called."""
    if len(options) > 1 and options["name"] in known:
        check_options(where, options, known[options["name"]])

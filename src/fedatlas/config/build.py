"""The objects that a config's values describe: data, federation, algorithm, optimizer, atlas settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedatlas.algorithms.registry import ALGORITHMS, build_algorithm
from fedatlas.algorithms.user_function import check_allowed, find_function
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.settings import TABLES
from fedatlas.config.checks import atlas_recipe, check_model
from fedatlas.config.schema import SETTINGS, USES
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Federation
from fedatlas.data.loading.arrays import rescale
from fedatlas.data.loading.catalogue import is_named
from fedatlas.data.loading.load import load_dataset
from fedatlas.data.partitions.basic import Partition
from fedatlas.data.partitions.federate import federate, usual_partition, usual_test
from fedatlas.data.partitions.registry import PARTITIONS
from fedatlas.data.transforms import Augment
from fedatlas.errors import DataError, UsageError, unknown_name
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import FunctionMetric, Metric
from fedatlas.parts.optimizer import LocalOptimizer
from fedatlas.parts.registry import OPTIMIZERS
from fedatlas.parts.sharing import One

READING = (
    *("text", "client", "label", "domain", "id", "classes", "categorical", "drop"),
    *("context", "stride", "fraction", "size", "task"),
)
"""Keys of [data] for data of the user's own; an empty name says that there is no such column."""
GROUP = "group"
"""The use of an atlas that decides who shares a model."""
GROUPING_ATLAS = {"source": "class-prototypes"}
"""How the atlas for that use is made unless it is said: from a summary that knows its noise."""
Values = Mapping[str, Any]


def build_dataset(data: Values, seed: int) -> Dataset:
    """Return the data set that ``[data]`` names."""
    found = load_dataset(
        data["source"], data_folder=data["folder"], seed=seed, domains=data["domains"], options=reading_options(data)
    )
    return scaled(found, data["mean"], data["std"])


def scaled(dataset: Dataset, mean: Any, std: Any) -> Dataset:
    """Return a data set with the scaling of images that is set, else with its own."""
    if mean is None and std is None:
        return dataset
    if mean is None or std is None:
        raise UsageError(
            "data.mean and data.std go together: images are scaled to (x - mean) / std. Give both.",
            code="settings-conflict",
        )
    return rescale(dataset, mean, std)


def reading_options(data: Values) -> dict[str, Any]:
    """Return how a table or a folder of pictures is read, as ``load_dataset`` takes it."""
    given = {key: data[key] for key in READING if data[key] is not None}
    return {key: None if value == "" and key != "text" else value for key, value in given.items()}


def build_federation(data: Values, dataset: Dataset, seed: int) -> Federation:
    """Return a data set, partitioned as ``[data]`` says."""
    named = is_named(data["source"])
    federation = federate(
        dataset,
        build_partition(data["partition"], dataset, own=not named),
        test=_test(data, dataset, named),
        test_fraction=data["test_fraction"],
        held_out=data["held_out"],
        leave_out=data["leave_out"] or (),
        seed=seed,
    )
    return federation if data["folds"] is None else federation.fold(data["fold"], data["folds"], seed)


def check_folds(data: Values) -> None:
    """Raise an error if a fold is chosen and there are no folds."""
    if data["folds"] is None and data["fold"] != SETTINGS["data.fold"].default:
        raise UsageError(
            f"data.fold={data['fold']} says which of data.folds, and there are none. Give data.folds too.",
            code="settings-conflict",
            got=data["fold"],
        )


def _test(data: Values, dataset: Dataset, named: bool) -> str:
    """Return the examples that clients are tested on; unless it is set, a test part in a user's file stays one."""
    if data["test"] is not None:
        return str(data["test"])
    # Folds are cut from all of a client's examples, so they need its own and no other client's.
    return "client" if data["folds"] is not None else usual_test(dataset, own=not named)


def build_partition(settings: Values | str | None, data: Dataset, *, own: bool = False) -> Partition:
    """Return a partition from a table with a name; without one, the plainest that fits the data.

    ``own`` data come from a user's file or folder: nothing is known of them that would call for imbalance.
    """
    if settings is None:
        return usual_partition(data, own=own)
    options = {"name": settings} if isinstance(settings, str) else dict(settings)
    name = options.pop("name")
    return make_checked(PARTITIONS[name], f"option of {name}", options)  # type: ignore[no-any-return]


def build_configured_algorithm(values: Values, atlas: Atlas | None, *, of_client: bool = False) -> Algorithm:
    """Return the algorithm over the optimizer that is named; ``atlas`` is the one that [atlas] says to make.

    One that is ``of_client`` does not say who shares a model.
    """
    algorithm = _base_algorithm(values)
    if values["optimizer"] != {"name": SETTINGS["optimizer.name"].default}:
        algorithm = algorithm.with_optimizer(build_optimizer(**values["optimizer"]))
    buffers, equal = values["training"]["buffers"], values["training"]["equal_weights"]
    algorithm = algorithm if buffers is None else algorithm.with_buffers(buffers)
    algorithm = algorithm.counting_equally() if equal else algorithm
    algorithm = _with_atlas(algorithm, values, atlas, slots=("sharing",) if of_client else ())
    return replace(algorithm, sharing=One()) if of_client else algorithm


def _base_algorithm(values: Values) -> Algorithm:
    """Return the algorithm that ``[algorithm]`` names, without what other sections change of it."""
    chosen = values["algorithm"]
    own = values["algorithms"].get(chosen["name"], {})
    return build_algorithm(**{**own, **chosen, "name": own.get("name", chosen["name"])})


def build_optimizer(name: str, **options: Any) -> LocalOptimizer:
    """Return a local optimizer by name."""
    return make_checked(OPTIMIZERS[name], f"option of {name}", options)  # type: ignore[no-any-return]


def atlas_to_make(values: Values) -> Values | None:
    """Return how to make the atlas of a run; None where a file holds it, or none is used."""
    section = values["atlas"]
    if section["make"] is None and section["file"] is None and GROUP in section["use"] and not _has_members(values):
        return GROUPING_ATLAS
    return section["make"]  # type: ignore[no-any-return]


def _has_members(values: Values) -> bool:
    """Return whether the clients of groups are named, so that no atlas has to show them."""
    return GROUP in values["atlas"]["use"] and values["sharing"]["members"] is not None


def _with_atlas(algorithm: Algorithm, values: Values, made: Atlas | None, *, slots: tuple[str, ...]) -> Algorithm:
    """Return the algorithm with all uses of the atlas, but for those that change only these slots."""
    options = dict(values["atlas"])
    make = atlas_to_make(values)
    file, uses = options.pop("file"), options.pop("use")
    del options["make"]
    for use in uses:
        if use not in USES:
            raise unknown_name("use of an atlas", use, USES)
    _check_used(values, make)
    if file is None and make is None and not _has_members(values):
        return algorithm
    if file is not None and make is not None:
        raise UsageError(
            "atlas: give either file, an atlas that is there, or make, how to make it.", code="settings-conflict"
        )
    if make is not None and made is None:
        raise UsageError(
            "atlas.make: the atlas has to be made before the algorithm is; give it as atlas=.", code="settings-conflict"
        )
    for recipe in dict.fromkeys(atlas_recipe(use).name for use in uses):
        facts = ALGORITHMS.entries[recipe].facts
        if facts["changes"] in slots:
            continue
        own = dict(values[facts["section"]]) if "section" in facts else dict(options)
        if len(facts["uses"]) > 1:
            own |= {use: use in uses for use in facts["uses"]}
        own |= {facts["over"]: algorithm, "atlas": made or file}
        algorithm = make_checked(ALGORITHMS[recipe], "option of atlas", own)
    return algorithm


def _check_used(values: Values, make: Values | None) -> None:
    """Raise UsageError if a key says how an atlas is used, and there is none, or not for that."""
    atlas, sharing = values["atlas"], values["sharing"]
    changed = [key for key, value in sharing.items() if value != SETTINGS[f"sharing.{key}"].default]
    if changed and GROUP not in atlas["use"]:
        raise UsageError(
            f"sharing.{changed[0]} says how an atlas makes groups, and it is not used for that. Add {GROUP!r} to "
            "atlas.use (--use group), or leave it out.",
            code="settings-conflict",
            got=f"sharing.{changed[0]}",
        )
    if atlas["file"] is not None or make is not None or (_has_members(values) and list(atlas["use"]) == [GROUP]):
        return
    others = [key for key in atlas if key not in ("file", "make", "use") and atlas[key] is not None]
    unused = ["use"] if atlas["use"] != SETTINGS["atlas.use"].default else others
    if unused:
        raise UsageError(
            f"atlas.{unused[0]} says how an atlas is used, and there is none. Give atlas.file (--atlas FILE) or "
            "atlas.make, or leave it out.",
            code="settings-conflict",
            got=f"atlas.{unused[0]}",
        )


def build_atlas_options(make: Values, seed: int) -> dict[str, Any]:
    """Return how to make an atlas, as options of ``make_atlas``."""
    options = {"strategy": "federated", "seed": seed, **make}
    for key in options.keys() & TABLES.keys():
        options[key] = make_checked(TABLES[key], f"option of atlas.make.{key}", options[key])
    return options


def build_metrics(names: Sequence[str]) -> list[str | Metric]:
    """Return metrics by name, and those that are functions of the user's, which must be allowed, as objects."""
    return [_own_metric(name) if ":" in name else name for name in names]


def _own_metric(text: str) -> Metric:
    check_allowed(text, "training.metrics:")
    found: Any = find_function(text, "training.metrics:")
    if isinstance(found, type) and issubclass(found, Metric):
        return found()
    return found if isinstance(found, Metric) else FunctionMetric(text.rpartition(":")[2], found)


def build_augment(options: Values | None) -> Augment | None:
    """Return the change of training images that ``training.augment`` describes."""
    return None if options is None else make_checked(Augment, "option of augment", dict(options))


def choose_model(values: Values, data: Dataset | None) -> tuple[str, dict[str, Any]]:
    """Return the model's name and options; where none is named, the usual one for data (images) and algorithm."""
    options = dict(values["model"])
    name = options.pop("name")
    if data is not None and data.kind == "tokens" and not data.vocabulary:
        raise DataError(
            f"{data.name}: its inputs are tokens without a vocabulary, which a model needs to know how many there "
            "are. Add an array vocabulary, one name for each token from 0 on; or give features as floats.",
            code="vocabulary-missing",
        )
    if not name:
        name, own = _base_algorithm(values).usual_model("image" if data is None else data.kind)
        options = {**own, **options}
    check_model({**options, "name": name})
    return name, options


def make_checked(make: Any, kind: str, options: dict[str, Any]) -> Any:
    """Return what a function or class makes of options; raise an error if one is unknown or missing."""
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            raise unknown_name(kind, option, known)
    missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in options]
    if missing:
        raise UsageError(
            f"{kind.removeprefix('option of ')} needs {', '.join(missing)}.", code="missing-option", option=missing[0]
        )
    return make(**options)

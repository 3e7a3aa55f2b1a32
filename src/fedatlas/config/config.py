"""Configs: TOML tables, checked key by key, with ``--set section.key=value`` on top.

seed = 0
[data]       source, folder, domains (some of its own), mean, std (of images, by channel), partition (a table with a
             name), test, test_fraction, held_out, folds, fold; of a table of texts text, client, label, domain (its
             columns), context, stride, fraction; of a folder of images size
[model]      name and the model's own options
[algorithm]  name and the recipe's own options
[atlas]      file or make (a table: how to make it first), use (a list of sample, aggregate, train), client2vec's own
             options
[seeds]      partition, model, sampling, batches: each is seed unless set apart
[algorithms] options by algorithm, for comparing several: fedsam = { rho = 0.01 }; or under a name of your own, for
             comparing one with itself: weak = { name = "fedprox", mu = 0.01 }
[optimizer]  name and the optimizer's own options
[training]   rounds, cohort, epochs, steps, batch_size, precision, compile, augment (a table), buffers, equal_weights,
             evaluate_every, test_own, checkpoint_every, memory_limit
[flower]     clients (how many, or their names), minimum, deadline, wait, insecure, adapt (a table: rounds, steps,
             lr, ... of a newcomer's tuning): over a network only
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedatlas.algorithms import ALGORITHMS, build_algorithm
from fedatlas.algorithms.client2vec import client2vec
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.client2vec.settings import IndexSettings
from fedatlas.client.work import LocalWork
from fedatlas.config.schema import ATLAS_OPTIONS, check_model, check_types
from fedatlas.data import PARTITIONS, Augment, Dataset, Federation, Partition, federate, is_named, load_dataset
from fedatlas.data.loading.arrays import rescale
from fedatlas.errors import DataError, UsageError, unknown_name
from fedatlas.models.registry import USUAL_MODELS
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.optimizer import OPTIMIZERS, LocalOptimizer
from fedatlas.seeds import Seeds
from fedatlas.training.settings import RunSettings, TrainingPlan

DEFAULTS: dict[str, Any] = {
    "seed": 0,
    "seeds": {"partition": None, "model": None, "sampling": None, "batches": None},
    "data": {
        "source": "digits",
        "folder": None,
        "domains": None,
        "mean": None,
        "std": None,
        "partition": None,
        "test": None,
        "test_fraction": 0.25,
        "held_out": 0,
        "folds": None,
        "fold": 0,
        "text": None,
        "client": None,
        "label": None,
        "domain": None,
        "context": None,
        "stride": None,
        "fraction": None,
        "size": None,
    },
    "model": {"name": None},
    "algorithm": {"name": "fedavg"},
    "algorithms": {},
    "atlas": {"file": None, "make": None, "use": ["sample", "aggregate"]},
    "optimizer": {"name": "sgd"},
    "training": {
        "rounds": 20,
        "cohort": None,
        "epochs": 1,
        "steps": None,
        "batch_size": 32,
        "precision": "float32",
        "compile": False,
        "augment": None,
        "buffers": None,
        "equal_weights": False,
        "evaluate_every": 1,
        "test_own": False,
        "checkpoint_every": None,
        "memory_limit": None,
    },
    "flower": {"clients": None, "minimum": 1, "deadline": 600, "wait": 600, "insecure": False, "adapt": {}},
}
READING = ("text", "client", "label", "domain", "context", "stride", "fraction", "size")
"""Keys of [data] for a table of texts or a folder of images; an empty name says that there is no such column."""
OPEN = ("model", "algorithm", "optimizer")
"""Sections whose options belong to what they name, and are checked when it is built."""
BY_ALGORITHM, ATLAS = "algorithms", "atlas"
USES = ("sample", "aggregate", "train")
"""What an atlas may be for; without a choice the first two."""


@dataclass(frozen=True)
class Config:
    """A checked config; ``values`` holds every key."""

    values: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path | str | None = None, settings: Sequence[str] = (), **sections: Any) -> Config:
        """Return the defaults, then the file, then ``sections``, then ``section.key=value`` settings."""
        values = deepcopy(DEFAULTS)
        if path is not None:
            _merge(values, _read(Path(path)), str(path))
        _merge(values, sections, "arguments")
        for setting in settings:
            key, sign, text = setting.partition("=")
            if not sign:
                raise UsageError(f"--set takes section.key=value, got {setting!r}.")
            tree: dict[str, Any] = {}
            node = tree
            *path_keys, last = key.strip().split(".")
            for part in path_keys:
                node = node.setdefault(part, {})
            node[last] = _value(text.strip())
            _merge(values, tree, f"--set {key.strip()}")
        check_types(values)
        return cls(values)

    @classmethod
    def from_text(cls, text: str, settings: Sequence[str] = ()) -> Config:
        """Return the config that is written in a TOML text, with ``section.key=value`` settings on top."""
        return cls.load(None, settings, **tomllib.loads(text))

    def dataset(self) -> Dataset:
        """Return the data set that is named."""
        data, seed = self.values["data"], self.seeds().partition
        folder, domains = data["folder"], data["domains"]
        found = load_dataset(data["source"], data_folder=folder, seed=seed, domains=domains, options=self.reading())
        return self.scaled(found)

    def scaled(self, dataset: Dataset) -> Dataset:
        """Return a data set with the scaling of images that is set, else with its own."""
        mean, std = self.values["data"]["mean"], self.values["data"]["std"]
        if mean is None and std is None:
            return dataset
        if mean is None or std is None:
            raise UsageError("data.mean and data.std go together: images are scaled to (x - mean) / std. Give both.")
        return rescale(dataset, mean, std)

    def reading(self) -> dict[str, Any]:
        """Return how a table of texts or a folder of images is read, as ``load_dataset`` takes it."""
        data = self.values["data"]
        given = {key: data[key] for key in READING if data[key] is not None}
        return {key: None if value == "" and key != "text" else value for key, value in given.items()}

    def federation(self) -> Federation:
        """Return the federation: the data set, partitioned."""
        data = self.values["data"]
        if data["folds"] is None and data["fold"] != DEFAULTS["data"]["fold"]:
            raise UsageError(
                f"data.fold={data['fold']} says which of data.folds, and there are none. Give data.folds too."
            )
        dataset = self.dataset()
        federation = federate(
            dataset,
            build_partition(data["partition"], dataset, own=not is_named(data["source"])),
            test=self._test(dataset),
            test_fraction=data["test_fraction"],
            held_out=data["held_out"],
            seed=self.seeds().partition,
        )
        if data["folds"] is not None:
            federation = federation.fold(data["fold"], data["folds"], self.seeds().partition)
        return federation

    def _test(self, dataset: Dataset) -> str:
        """Return what clients are tested on; unless it is set, a test part in a file of one's own stays one."""
        data = self.values["data"]
        if data["test"] is not None:
            return str(data["test"])
        # Folds are cut from all that a client has, so they need its own examples and nobody else's.
        kept = dataset.is_test is not None and bool(dataset.is_test.any()) and data["folds"] is None
        return "all" if kept and not is_named(data["source"]) else "client"

    def algorithm(self, atlas: Atlas | None = None) -> Algorithm:
        """Return the algorithm over the optimizer that is named; ``atlas`` is the one that [atlas] says to make."""
        chosen = self.values["algorithm"]
        own = self.values[BY_ALGORITHM].get(chosen["name"], {})
        algorithm = build_algorithm(**{**own, **chosen, "name": own.get("name", chosen["name"])})
        if self.values["optimizer"] != DEFAULTS["optimizer"]:
            algorithm = algorithm.with_optimizer(build_optimizer(**self.values["optimizer"]))
        buffers, equal = (self.values["training"][key] for key in ("buffers", "equal_weights"))
        algorithm = algorithm if buffers is None else algorithm.with_buffers(buffers)
        return self._with_atlas(algorithm.counting_equally() if equal else algorithm, atlas)

    def _with_atlas(self, algorithm: Algorithm, made: Atlas | None) -> Algorithm:
        options = dict(self.values[ATLAS])
        file, make, uses = options.pop("file"), options.pop("make"), options.pop("use")
        if file is None and make is None:
            idle = ["use"] if uses != DEFAULTS[ATLAS]["use"] else [key for key in options if options[key] is not None]
            if idle:
                raise UsageError(
                    f"atlas.{idle[0]} says how an atlas is used, and there is none. Give atlas.file (--atlas FILE) or "
                    "atlas.make, or leave it out."
                )
            return algorithm
        if file is not None and make is not None:
            raise UsageError("atlas: give either file, an atlas that is there, or make, how to make it.")
        if make is not None and made is None:
            raise UsageError("atlas.make: the atlas has to be made before the algorithm is; give it as atlas=.")
        for use in uses:
            if use not in USES:
                raise unknown_name("use of an atlas", use, USES)
        options |= {"base": algorithm, "atlas": made or file, **{use: use in uses for use in USES}}
        return _checked(client2vec, "option of atlas", options)  # type: ignore[no-any-return]

    def atlas_settings(self) -> dict[str, Any] | None:
        """Return how to make an atlas, as options of ``make_atlas``; None where none is to be made."""
        make = self.values[ATLAS]["make"]
        if make is None:
            return None
        known = ("source", "encoder", "encoder_options", "strategy", "epochs", "settings")
        for option in make:
            if option not in known:
                raise unknown_name("option of atlas.make", option, known)
        options = {"strategy": "federated", "seed": self.seeds().model, **make}
        if "settings" in options:
            options["settings"] = _checked(IndexSettings, "option of atlas.make.settings", options["settings"])
        return options

    def work(self) -> LocalWork:
        """Return how much a client trains."""
        training = self.values["training"]
        augment = None if training["augment"] is None else _checked(Augment, "option of augment", training["augment"])
        return LocalWork(
            **{key: training[key] for key in ("epochs", "steps", "batch_size", "precision", "compile")}, augment=augment
        )

    def plan(self) -> TrainingPlan:
        """Return how long and how often."""
        keys = ("rounds", "cohort", "evaluate_every", "test_own", "checkpoint_every", "memory_limit")
        return TrainingPlan(**{key: self.values["training"][key] for key in keys})

    def seeds(self) -> Seeds:
        """Return the four seeds; those not set apart are ``seed``."""
        apart = {key: value for key, value in self.values["seeds"].items() if value is not None}
        return dataclasses.replace(Seeds.of(self.values["seed"]), **apart)

    def model(self, data: Dataset | None = None) -> tuple[str, dict[str, Any]]:
        """Return the model's name and options; where none is named, the usual one for the data, or for images."""
        options = dict(self.values["model"])
        name = options.pop("name")
        if data is not None and data.kind == "tokens" and not data.vocabulary:
            raise DataError(
                f"{data.name}: its inputs are tokens without a vocabulary, which a model needs to know how many there "
                "are. Add an array vocabulary, one name for each token from 0 on; or give features as floats."
            )
        name = str(name or USUAL_MODELS["image" if data is None else data.kind])
        check_model({**options, "name": name})
        return name, options

    def run_settings(self, data: Dataset | None = None) -> RunSettings:
        """Return all of a run's settings, besides its data and its algorithm; ``data`` is as for ``model``."""
        model, options = self.model(data)
        return RunSettings(model=model, model_options=options, work=self.work(), plan=self.plan(), seeds=self.seeds())

    def to_toml(self) -> str:
        """Return the config as TOML, without keys that are not set."""
        top = [f"{key} = {_toml(value)}" for key, value in self.values.items() if not isinstance(value, Mapping)]
        tables = []
        for section, table in self.values.items():
            if isinstance(table, Mapping) and (
                lines := [f"{k} = {_toml(v)}" for k, v in table.items() if v is not None]
            ):
                tables.append("\n".join([f"[{section}]", *lines]))
        return "\n\n".join(["\n".join(top), *tables]) + "\n"


def build_optimizer(name: str = "sgd", **options: Any) -> LocalOptimizer:
    """Return a local optimizer by name."""
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    return _checked(OPTIMIZERS[name], f"option of {name}", options)  # type: ignore[no-any-return]


def build_partition(settings: Mapping[str, Any] | str | None, data: Dataset, *, own: bool = False) -> Partition:
    """Return a partition from a table with a name; without one, the plainest that fits the data.

    ``own`` data come from a file or folder of the user's, of which nothing is known that would call for imbalance.
    """
    if settings is None:
        if data.owner is not None:
            settings = {"name": "natural-id"}
        elif data.domain is not None:
            settings = {"name": "by-domain"} if own else {"name": "domain-imbalance", "factor": 5}
        else:
            count = max(2, min(10, len(data) // 40))
            settings = {"name": "dirichlet", "num_clients": count, "alpha": 0.5, "min_samples": 4}
    options = {"name": settings} if isinstance(settings, str) else dict(settings)
    if "name" not in options:
        raise UsageError(
            f"data.partition needs a key name, got {', '.join(map(repr, options)) or 'an empty table'}. Give "
            f'{{ name = "...", ... }} with one of {", ".join(sorted(PARTITIONS))}.'
        )
    name = options.pop("name")
    if name not in PARTITIONS:
        raise unknown_name("partition", name, PARTITIONS)
    return _checked(PARTITIONS[name], f"option of {name}", options)  # type: ignore[no-any-return]


def _checked(make: Any, kind: str, options: dict[str, Any]) -> Any:
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            raise unknown_name(kind, option, known)
    missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in options]
    if missing:
        raise UsageError(f"{kind.removeprefix('option of ')} needs {', '.join(missing)}.")
    return make(**options)


def _merge(values: dict[str, Any], changes: Mapping[str, Any], where: str) -> None:
    for section, change in changes.items():
        if section not in DEFAULTS:
            raise unknown_name(f"key in {where}:", section, DEFAULTS)
        if not isinstance(DEFAULTS[section], Mapping):
            values[section] = change
            continue
        if not isinstance(change, Mapping):
            raise UsageError(f"{where}: {section} is a table of keys, got {change!r}.")
        if section in OPEN:
            name = values[section]["name"] or USUAL_MODELS["image"]
            if change.get("name", name) != name:
                values[section] = {}  # another model's or algorithm's options do not carry over
        for key, value in change.items():
            if section == BY_ALGORITHM:
                named = {*values[section].get(key, {}), *(value if isinstance(value, Mapping) else ())}
                if key not in ALGORITHMS and "name" not in named:
                    raise unknown_name(f"algorithm in {where} (or say which: name = ...): {section}.", key, ALGORITHMS)
            elif section not in OPEN and key not in (known := _keys(section)):
                raise unknown_name(f"key in {where}: {section}.", key, known)
            if isinstance(value, Mapping) and isinstance(values[section].get(key), Mapping) and "name" not in value:
                value = {**values[section][key], **value}
            values[section][key] = value


def _keys(section: str) -> tuple[str, ...]:
    return (*DEFAULTS[section], *(ATLAS_OPTIONS if section == ATLAS else ()))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no config {path}. Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read config {path}: {getattr(error, 'strerror', None) or error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text.lower() in ("none", "null") else text


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else repr(value)

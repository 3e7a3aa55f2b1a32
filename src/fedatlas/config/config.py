"""Configs: TOML tables, checked key by key, with ``--set section.key=value`` on top.

The sections and their keys are in ``schema``. ``[model]``, ``[algorithm]``, ``[optimizer]`` and ``[atlas]`` also take
the options of the thing that they name. ``[algorithms]`` has options by algorithm, for a comparison of several, such as
``fedsam = { rho = 0.01 }``; or under your own name for one of them, for a comparison of one with itself:
``weak = { name = "fedprox", mu = 0.01 }``.

Nothing here imports torch: a config is read and its names are checked before anything is built.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.client.work import LocalWork
from fedatlas.config.checks import atlas_options, check_code, check_names, check_settings, check_types
from fedatlas.config.schema import SECTIONS, SETTINGS, defaults
from fedatlas.errors import UsageError, unknown_name
from fedatlas.models.registry import USUAL_MODELS
from fedatlas.seeds import Seeds
from fedatlas.training.settings import Machine, Settings, TrainingPlan

if TYPE_CHECKING:
    from fedatlas.atlas.atlas import Atlas
    from fedatlas.data.dataset import Dataset
    from fedatlas.data.federation import Federation
    from fedatlas.parts.algorithm import Algorithm

OPEN = ("model", "algorithm", "optimizer")
"""Sections whose options belong to the thing that they name."""
BY_ALGORITHM = "algorithms"


@dataclass(frozen=True)
class Config:
    """A checked config; ``values`` holds every key."""

    values: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path | str | None = None, settings: Sequence[str] = (), **sections: Any) -> Config:
        """Return the defaults, then the file, then ``sections``, then ``section.key=value`` settings."""
        config = cls.read(path, settings, **sections)
        config.check()
        return config

    @classmethod
    def read(cls, path: Path | str | None = None, settings: Sequence[str] = (), **sections: Any) -> Config:
        """Return a config as ``load`` does, without the check of options' types, which imports what they belong to."""
        values = defaults()
        if path is not None:
            _merge(values, _read(Path(path)), str(path))
        _merge(values, sections, "arguments")
        for setting in settings:
            key, sign, text = setting.partition("=")
            if not sign:
                raise UsageError(f"--set takes section.key=value, got {setting!r}.", code="not-a-setting", got=setting)
            tree: dict[str, Any] = {}
            node = tree
            *path_keys, last = key.strip().split(".")
            for part in path_keys:
                node = node.setdefault(part, {})
            node[last] = _value(text.strip())
            _merge(values, tree, f"--set {key.strip()}")
        check_settings(values)
        check_names(values)
        return cls(values)

    @classmethod
    def from_text(cls, text: str, settings: Sequence[str] = ()) -> Config:
        """Return the config that is written in a TOML text, with ``section.key=value`` settings on top."""
        return cls.load(None, settings, **tomllib.loads(text))

    def check(self) -> None:
        """Raise an error if an option is of the wrong type; this imports the things that options belong to."""
        check_types(self.values)

    def check_code(self) -> None:
        """Raise an error if the algorithm is a user's function that was not allowed on this machine."""
        check_code(self.values)

    def dataset(self) -> Dataset:
        """Return the data set that is named."""
        from fedatlas.config.build import build_dataset

        return build_dataset(self.values["data"], self.seeds().partition)

    def scaled(self, dataset: Dataset) -> Dataset:
        """Return a data set with the scaling of images that is set, else with its own."""
        from fedatlas.config.build import scaled

        return scaled(dataset, self.values["data"]["mean"], self.values["data"]["std"])

    def reading(self) -> dict[str, Any]:
        """Return how a table or a folder of pictures is read, as ``load_dataset`` takes it."""
        from fedatlas.config.build import reading_options

        return reading_options(self.values["data"])

    def federation(self) -> Federation:
        """Return the federation: the data set, partitioned."""
        from fedatlas.config.build import build_federation, check_folds

        check_folds(self.values["data"])
        return build_federation(self.values["data"], self.dataset(), self.seeds().partition)

    def algorithm(self, atlas: Atlas | None = None) -> Algorithm:
        """Return the algorithm over the optimizer that is named; ``atlas`` is the one that [atlas] says to make."""
        from fedatlas.config.build import build_configured_algorithm

        return build_configured_algorithm(self.values, atlas)

    def client_algorithm(self, atlas: Atlas | None = None) -> Algorithm:
        """Return the algorithm as a single client needs it: who shares a model is for the server to know."""
        from fedatlas.config.build import build_configured_algorithm

        return build_configured_algorithm(self.values, atlas, of_client=True)

    def atlas_settings(self) -> dict[str, Any] | None:
        """Return how to make an atlas, as options of ``make_atlas``; None where none is to be made."""
        from fedatlas.config.build import atlas_to_make, build_atlas_options

        make = atlas_to_make(self.values)
        return None if make is None else build_atlas_options(make, self.seeds().model)

    def work(self) -> LocalWork:
        """Return how much a client trains."""
        from fedatlas.config.build import build_augment

        training = self.values["training"]
        given = {own.name: training[own.name] for own in fields(LocalWork)}
        return LocalWork(**given | {"augment": build_augment(training["augment"])})

    def plan(self) -> TrainingPlan:
        """Return how long and how often."""
        from fedatlas.config.build import build_metrics

        given = {own.name: self.values["training"][own.name] for own in fields(TrainingPlan)}
        return TrainingPlan(**given | {"metrics": build_metrics(given["metrics"])})

    def seeds(self) -> Seeds:
        """Return the four seeds; those not set apart are ``seed``."""
        apart = {key: value for key, value in self.values["seeds"].items() if value is not None}
        return dataclasses.replace(Seeds.of(self.values["seed"]), **apart)

    def model(self, data: Dataset | None = None) -> tuple[str, dict[str, Any]]:
        """Return the model's name and options; where none is named, the usual one for data (images) and algorithm."""
        from fedatlas.config.build import choose_model

        return choose_model(self.values, data)

    def run_settings(self, data: Dataset | None = None, machine: Machine | None = None) -> Settings:
        """Return a training's settings; ``data`` is as for ``model``, ``machine`` says where it runs.

        The optimizer is not among them: ``algorithm`` has it.
        """
        model, options = self.model(data)
        parts = (self.work(), self.plan(), machine or Machine())
        given = {own.name: getattr(part, own.name) for part in parts for own in fields(part)}
        return Settings(model=model, model_options=options, seed=self.seeds(), **given)

    def to_toml(self) -> str:
        """Return the config as TOML, without keys that are not set."""
        import tomli_w  # only what writes a config needs it

        given = _without_none(self.values)
        for one in SETTINGS.values():
            if one.can_be_off and self.values[one.section][one.name] is None:
                given[one.section][one.name] = "none"
        return tomli_w.dumps({key: value for key, value in given.items() if value != {}})


def _merge(values: dict[str, Any], changes: Mapping[str, Any], where: str) -> None:
    for section, change in changes.items():
        if section not in values:
            raise unknown_name(f"key in {where}:", section, values)
        if section not in SECTIONS:
            values[section] = change
            continue
        if not isinstance(change, Mapping):
            text = f"{where}: {section} is a table of keys, got {change!r}."
            raise UsageError(text, code="wrong-type", setting=section, got=change)
        if section in OPEN:
            name = values[section]["name"] or USUAL_MODELS["image"]
            if change.get("name", name) != name:
                values[section] = {}  # another model's or algorithm's options do not carry over
        for key, value in change.items():
            _check_key(values, section, key, value, where)
            own = SETTINGS.get(f"{section}.{key}")
            if value == "none" and own is not None and own.can_be_off:
                value = None
            if isinstance(value, Mapping) and isinstance(values[section].get(key), Mapping) and "name" not in value:
                value = {**values[section][key], **value}
            values[section][key] = value


def _check_key(values: Mapping[str, Any], section: str, key: str, value: Any, where: str) -> None:
    if section == BY_ALGORITHM:
        named = {*values[section].get(key, {}), *(value if isinstance(value, Mapping) else ())}
        if key not in ALGORITHMS and "name" not in named:
            raise unknown_name(f"algorithm in {where} (or say which: name = ...): {section}.", key, ALGORITHMS)
    elif section not in OPEN:
        known = [*(one.name for one in SECTIONS[section]), *(atlas_options() if section == "atlas" else ())]
        if key not in known:
            raise unknown_name(f"key in {where}: {section}.", key, known)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no config {path}. Check the path.", code="file-missing", path=path) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read config {path}: {reason}.", code="file-unreadable", path=path) from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.", code="file-invalid", path=path) from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError, ValueError):
        return None if text.lower() in ("none", "null") else text


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value

"""The sections of a config: each key with its type, its default and a line of help.

A section's keys are the fields of dataclasses. Those of ``[training]`` are the fields of the settings of a training;
the rest are here. The merging of configs, the checks of ``--set``, ``fedatlas list settings``, the help of the command
line and the table in docs/configs.md read ``SETTINGS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from fedatlas.client.work import LocalWork
from fedatlas.errors import UsageError, unknown_name
from fedatlas.parts.checks import check_value, describe_kind, field_kinds, setting
from fedatlas.training.settings import Settings, TrainingPlan

USES = ("sample", "aggregate", "train", "group")
"""The uses of an atlas."""


@dataclass(frozen=True, kw_only=True)
class SeedsSection:
    """``[seeds]``: one seed apart from the others."""

    partition: int | None = setting(None, "the seed of who holds which example, where it is not `seed`")
    model: int | None = setting(None, "the seed of the first parameters")
    sampling: int | None = setting(None, "the seed of who takes part in a round")
    batches: int | None = setting(None, "the seed of the order of examples, augmentation and dropout")


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """``[data]``: the data set and the clients that hold it."""

    source: str | Path = setting("digits", "a name from `fedatlas list datasets`, or a path")
    folder: str | Path | None = setting(
        None, "the folder of named data sets' files; by default the one that the variable FEDATLAS_DATA names"
    )
    domains: Sequence[str] | None = setting(None, "only these domains of the data set, in this order")
    mean: Sequence[float] | None = setting(None, "of images, by channel; with `std`, inputs are (x - mean) / std")
    std: Sequence[float] | None = setting(None, "of images, by channel")
    partition: str | Mapping[str, Any] | None = setting(
        None,
        "a name from `fedatlas list partitions`, or a table with a name and options; by default one that suits the "
        "data",
    )
    test: str | None = setting(
        None, "the examples that a client is tested on: client, domain or all; by default what suits the data"
    )
    test_fraction: float = setting(
        0.25, "the share of examples set apart for the test, where the data have no test part"
    )
    held_out: int | float | str | Sequence[str] = setting(
        0, "clients that never train: a number, a fraction, or names of clients or domains"
    )
    leave_out: str | Sequence[str] | None = setting(
        None, "clients that take no part at all: names of clients or domains"
    )
    folds: int | None = setting(None, "parts for a cross-validation inside each client")
    fold: int = setting(0, "the part that is the test, of `folds`")
    text: str | None = setting(None, "of a table of texts: the column of the text")
    client: str | None = setting(None, "of a table: the column of the client; empty if there is none")
    task: str | None = setting(
        None,
        "of your own data, what is predicted: classification, multi-label, regression or segmentation; by default "
        "classification",
    )
    label: str | Sequence[str] | None = setting(
        None, "of a table: the column of the label, or a list of columns to predict; empty if there is none"
    )
    domain: str | None = setting(None, "of a table: the column of the domain; empty if there is none")
    id: str | None = setting(None, "of a table of numbers: the column that names a row; empty if there is none")
    classes: Mapping[str, Any] | Sequence[str] | None = setting(
        None, "of a table of numbers: the labels of each class, such as { healthy = [0], ill = [1, 2] }, or all classes"
    )
    categorical: Sequence[str] | None = setting(
        None, "of a table of numbers: columns whose numbers are codes of categories"
    )
    drop: Sequence[str] | None = setting(None, "of a table of numbers: columns that are not used")
    context: int | None = setting(None, "of a table of texts: characters that a model sees")
    stride: int | None = setting(None, "of a table of texts: characters from one example to the next")
    fraction: float | None = setting(None, "of a table of texts: the share of the text that is used")
    size: int | Sequence[int] | None = setting(None, "of a folder of pictures: height and width in pixels")


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """``[model]``: a model's name and its options."""

    name: str | None = setting(
        None,
        "a name from `fedatlas list models`, with the model's options beside it; by default one that suits the data",
    )


@dataclass(frozen=True, kw_only=True)
class AlgorithmSection:
    """``[algorithm]``: an algorithm's name and its options."""

    name: str = setting("fedavg", "a name from `fedatlas list algorithms`, with the algorithm's options beside it")


@dataclass(frozen=True, kw_only=True)
class AtlasSection:
    """``[atlas]``: an atlas of the clients and its uses; the options of the recipe that uses it go here too."""

    file: str | Path | None = setting(None, "a file that `fedatlas map` made of the same clients")
    make: Mapping[str, Any] | None = setting(
        None, "a table that says how to make the atlas: source, encoder, encoder_options, strategy, epochs, settings"
    )
    use: Sequence[str] = setting(
        ["sample", "aggregate"], "the uses of the atlas: a list of sample, aggregate, train, group"
    )


@dataclass(frozen=True, kw_only=True)
class SharingSection:
    """``[sharing]``: which clients share a model, where the use of the atlas is ``group``."""

    groups: int | Literal["auto"] = setting(
        "auto", "a number of groups, or auto: as many as the atlas shows, if they pay"
    )
    members: Sequence[Sequence[str]] | None = setting(
        None, "the clients of each group by name, without an atlas; all others make one more group"
    )
    level: Literal["all", "head", "norms"] = setting("all", "the parameters that each group has for itself")
    pilot: int = setting(8, "rounds of the late trial of whether a group gains by leaving", least=1)
    threshold: float = setting(1.3, "how large t must be in a trial for a group to leave")


@dataclass(frozen=True, kw_only=True)
class OptimizerSection:
    """``[optimizer]``: an optimizer's name and its options."""

    name: str = setting(
        "sgd",
        "a name from `fedatlas list optimizers`, with its options beside it; an algorithm that brings its own "
        "optimizer keeps it unless this section is set",
    )


@dataclass(frozen=True, kw_only=True)
class TrainingTables:
    """The keys of ``[training]`` that a config writes in another form than Python, or that change the algorithm."""

    metrics: Sequence[str] = setting([], TrainingPlan.__dataclass_fields__["metrics"].metadata["help"])
    augment: Mapping[str, Any] | None = setting(
        None, "a table: padding, flip, degrees, rotate, erase, erase_pixels of training images"
    )
    buffers: Literal["average", "keep", "none"] | None = setting(
        None, "what becomes of running statistics; by default the algorithm decides"
    )
    equal_weights: bool = setting(False, "clients count the same, whatever their size")


@dataclass(frozen=True, kw_only=True)
class FlowerSection:
    """``[flower]``: settings of a run over a network; the simulator ignores them."""

    clients: int | Sequence[str] | None = setting(
        None,
        "how many clients to wait for before round 1, or their names in the roster's order; by default those that "
        "are there when no new one has come for 10 s",
    )
    minimum: int | float = setting(
        1, "answers without which a round changes nothing: a number, or a share of the cohort"
    )
    deadline: float = setting(600, "seconds for an answer")
    wait: float = setting(600, "seconds to wait for clients: before round 1, on a resume, or when too few are there")
    most_weight: float | None = setting(
        10.0,
        "a client counts at most as much as one that is this many times as large as each of the others; none is "
        "no limit",
    )
    most_change: float | None = setting(
        100.0,
        "a change, or a move of running statistics, that is more than this many times as long as the median of its "
        "round is left out; none is no limit",
    )
    insecure: bool = setting(False, "take nodes whose key is registered under no name")
    adapt: Mapping[str, Any] = setting({}, "a table: tune, rounds, steps, lr of a newcomer's tuning")


@dataclass(frozen=True, kw_only=True)
class NewcomerTuning:
    """``flower.adapt``: all that a server may choose of how a newcomer tunes; None is as in ``fedatlas adapt``."""

    tune: Literal["personal", "head", "norms", "all"] | None = None
    rounds: int | None = setting(None, "", least=0)
    steps: int | None = setting(None, "", least=1)
    lr: float | None = None

    @classmethod
    def of(cls, where: str, options: Any) -> NewcomerTuning:
        """Return the tuning that a table says; raise UsageError if it says anything else, or too much."""
        check_value(where, options, Mapping[str, Any])
        kinds = field_kinds(NewcomerTuning)
        for key, value in options.items():
            if key not in kinds:
                raise unknown_name(f"key in {where}:", key, kinds)
            check_value(f"{where}.{key}", value, kinds[key], cls.__dataclass_fields__[key].metadata.get("least"))
        for key, most in (("rounds", MOST_TURNS), ("steps", MOST_TURNS), ("lr", MOST_RATE)):
            value = options.get(key)
            if value is not None and not (value <= most and (key != "lr" or value > 0)):
                least = "above 0 and at most" if key == "lr" else "at most"
                raise UsageError(
                    f"{where}.{key} must be {least} {most}, got {value}.", code="out-of-range", setting=key, got=value
                )
        return cls(**options)

    def chosen(self) -> dict[str, Any]:
        """Return what is not left to ``fedatlas adapt``."""
        return {own.name: value for own in fields(self) if (value := getattr(self, own.name)) is not None}


MOST_TURNS, MOST_RATE = 1000, 10
"""The most rounds of a newcomer's tuning, and steps of a round; the largest learning rate."""
NEWCOMER_TELLS = (
    "of a newcomer that tunes the model: its mean loss over all of its training examples afterwards; its scores before "
    "and after, if its test part has the least_examples of its policy; how many examples, steps, numbers and seconds "
    "it took"
)
"""What leaves the node of a newcomer, in words."""


class Setting(NamedTuple):
    """One key of a config."""

    section: str
    """Empty for a key outside the sections."""
    name: str
    kind: Any
    """The annotation that its value fits."""
    default: Any
    help: str
    least: float | None = None

    @property
    def key(self) -> str:
        """The key as ``--set`` takes it."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def can_be_off(self) -> bool:
        """Whether None is another value than the default; TOML has no None, so files say "none"."""
        return self.default is not None and type(None) in get_args(self.kind)

    @property
    def words(self) -> str:
        """The values that it takes, in words."""
        return describe_kind(self.kind)


def _settings(section: str, *sources: type) -> list[Setting]:
    found: dict[str, Setting] = {}
    for source in sources:
        kinds = field_kinds(source)
        found |= {
            own.name: Setting(section, own.name, kinds[own.name], _default(own), **own.metadata)
            for own in fields(source)
        }
    return list(found.values())


def _default(own: Field[Any]) -> Any:
    return own.default if own.default_factory is MISSING else own.default_factory()


SECTIONS: dict[str, list[Setting]] = {
    "seeds": _settings("seeds", SeedsSection),
    "data": _settings("data", DataSection),
    "model": _settings("model", ModelSection),
    "algorithm": _settings("algorithm", AlgorithmSection),
    "algorithms": [],
    "atlas": _settings("atlas", AtlasSection),
    "sharing": _settings("sharing", SharingSection),
    "optimizer": _settings("optimizer", OptimizerSection),
    "training": _settings("training", TrainingPlan, LocalWork, TrainingTables),
    "flower": _settings("flower", FlowerSection),
}
"""The sections and their keys; ``[algorithms]`` holds options by algorithm."""
SEED = Setting(
    "",
    "seed",
    int,
    Settings.__dataclass_fields__["seed"].default,
    "the seed of all random numbers; `[seeds]` sets some of them separately",
)
SETTINGS: dict[str, Setting] = {one.key: one for one in (SEED, *(one for keys in SECTIONS.values() for one in keys))}
"""Every key of a config that does not depend on a name, as ``--set`` takes it."""


def defaults() -> dict[str, Any]:
    """Return the values of a config in which nothing is set."""
    fresh: dict[str, Any] = {name: {one.name: one.default for one in keys} for name, keys in SECTIONS.items()}
    return {"seed": SEED.default, **fresh}

"""The parts of a run, built again from its folder: its algorithm, its federation, its network.

A run that a config made says all of it. One from Python names its algorithm and, if it was one by name, its model; the
data, and whatever else was built by hand, must be given again and is checked against the record.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedatlas.algorithms import build_algorithm, standalone
from fedatlas.atlas.atlas import Atlas
from fedatlas.config.config import Config
from fedatlas.config.reading import reading_elsewhere
from fedatlas.data import ByDomain, Dataset, Federation, Iid, NaturalId, Transform, federate
from fedatlas.data.dataset import renumbered
from fedatlas.data.loading.catalogue import TASK, is_named, kind_of
from fedatlas.data.loading.cells import table_columns
from fedatlas.data.loading.texts import LABEL
from fedatlas.data.preparation import Preparation
from fedatlas.data.table import CATEGORY
from fedatlas.data.task import Task
from fedatlas.errors import DataError, UsageError
from fedatlas.models import HUB_PREFIX, MODELS
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import Metric, known_metrics, make_metrics
from fedatlas.parts.registry import OPTIMIZERS
from fedatlas.runs.run import ATLAS, CONFIG, Run
from fedatlas.seeds import Seeds
from fedatlas.training.model import Model, make_model
from fedatlas.training.train import fingerprint

PREPARATION = "preparation"
"""In the record of a run, how inputs were made from its tables."""


def run_config(run: Run) -> Config | None:
    """Return the config that made a run, if one did."""
    path = run.folder / CONFIG
    return Config.load(path) if path.exists() else None


def run_algorithm(run: Run, given: Algorithm | None = None) -> Algorithm:
    """Return a run's algorithm; one that is given must build and keep at home what the run's did."""
    config = run_config(run)
    if given is None and config is not None:
        file = run.folder / ATLAS
        return config.algorithm(Atlas.load(file) if file.exists() else None)
    then: dict[str, Any] = run.resolved["algorithm"]
    if given is None and run.name not in standalone():
        raise UsageError(
            f"{run.folder} was made by {run.name!r}, which is not one of the recipes; give algorithm=.",
            code="not-rebuildable",
            got=run.name,
        )
    algorithm = given or _with_optimizer(build_algorithm(run.name), then["optimizer"])
    now = json.loads(json.dumps(algorithm.describe()))
    for slot in ("split", "extensions") if given else ("split", "extensions", "optimizer"):
        if then[slot] != now[slot]:
            raise UsageError(
                f"{run.folder} was trained with {slot} {then[slot]}, not {now[slot]}. "
                "Give algorithm= as it was in training.",
                code="run-differs",
                got=now[slot],
                known=then[slot],
            )
    return algorithm


def run_federation(run: Run, given: Federation | Dataset | None = None) -> Federation:
    """Return a run's federation, or the one that is given; a data set is one client's, or one for each owner or domain.

    A test part that the data set comes with is kept for the test.
    """
    then = run.resolved["federation"]
    form = then["form"]
    if isinstance(given, Dataset):
        # Scaled as the run's examples were: the network knows no other inputs.
        given = prepare_as_run(run, replace(given, mean=tuple(form["mean"]), std=tuple(form["std"])))
        whose = NaturalId(min_samples=1) if given.owner is not None else ByDomain() if given.domains else None
        test = "client"
        if given.is_test is not None and bool(given.is_test.any()):
            test = "domain" if isinstance(whose, ByDomain) else "all"
        federation = federate(given, whose or Iid(num_clients=1), test=test, seed=run.resolved["seeds"]["partition"])
        if whose is None:
            federation = replace(federation, clients=(replace(federation.clients[0], name=given.name),))
    elif given is not None:
        federation = replace(given, data=prepare_as_run(run, given.data))
    else:
        config = run_config(run)
        if config is None:
            raise UsageError(
                f"{run.folder} was made in Python, so it does not know where its data are; give data= (--data).",
                code="not-rebuildable",
                path=run.folder,
            )
        try:
            federation = config.federation()
        except (DataError, UsageError) as error:
            raise DataError(
                f"the data of {run.folder} cannot be read from here: {error} A relative path begins where the run was "
                "trained; go there, or bring data (--data, data=).",
                code="data-missing",
                path=run.folder,
            ) from error
        if fingerprint(federation) != then["fingerprint"]:
            raise DataError(
                f"the data of {run.folder} changed since it was trained. Restore them, or give data= (--data).",
                code="run-differs",
                path=run.folder,
            )
    data = federation.data
    here, there = (data.kind, list(data.inputs.shape[1:])), (then["kind"], form["shape"])
    if here != there:
        do = "Bring them to that shape."
        if data.kind == then["kind"] == "image" and here[1][0] != there[1][0]:
            do += " The first number is channels: repeat a grey one, or make colours grey."
        raise DataError(
            f"{federation.name}: its inputs are of kind {here[0]} and shape {here[1]}, those of {run.folder} of kind "
            f"{there[0]} and shape {there[1]}. {do}",
            code="data-form",
            got=here,
            known=there,
        )
    return replace(federation, data=renumbered(data, then["classes"], form["vocabulary"]))


def prepare_as_run(run: Run, data: Dataset) -> Dataset:
    """Return data with a table's inputs made as the run's were."""
    described = run.resolved["federation"]["form"].get(PREPARATION)
    if described is None or data.table is None:
        return data
    try:
        return data.prepared(Preparation.from_described(described))
    except DataError as error:
        raise DataError(
            f"{data.name} does not fit {run.folder}: {error}.", code=error.code, **error.fields, path=str(run.folder)
        ) from None


def run_reading(run: Run, source: str | Path) -> dict[str, Any]:
    """Return how a new client's folder of pictures or table is read: as the run's own were, for its task.

    The run's own data need not be there. Of a new client's texts none are left out.
    """
    config, then = run_config(run), run.resolved["federation"]
    options = reading_elsewhere(config, source)
    if TASK in then and not is_named(source):
        options.setdefault(TASK, then[TASK])
    if kind_of(source) != "table":
        return options
    if PREPARATION in then["form"]:
        known = {column["name"] for column in then["form"][PREPARATION] if column["kind"] == CATEGORY}
        options["categorical"] = [name for name in table_columns(source) if name in known]
        if TASK in then:
            options.setdefault("label", list(then["classes"]))
        else:
            options.setdefault("classes", list(then["classes"]))
    elif config is not None and then["kind"] == "tokens":
        # The next character is the task where every token is a class.
        options.setdefault("label", None if then["classes"] == then["form"]["vocabulary"] else LABEL)
    return options


def run_network(run: Run, federation: Federation, algorithm: Algorithm, given: Model | None = None) -> nn.Module:
    """Return a run's network with its first parameters."""
    model: Model = run.resolved["model"]["name"] if given is None else given
    if given is None and not is_model_name(run.resolved["model"]["name"]):
        raise UsageError(
            f"{run.folder} was trained with your own model, {model}; give model=.", code="not-rebuildable", got=model
        )
    options = run.resolved["model"]["options"] if isinstance(model, str) else {}
    return make_model(model, options, federation, algorithm, Seeds(**run.resolved["seeds"]).model)


def run_metrics(run: Run, task: Task) -> tuple[Metric, ...]:
    """Return a run's further metrics; a function of the user's where a config names it, or its file was imported."""
    config = run_config(run)
    if config is not None and any(":" in name for name in config.values["training"]["metrics"]):
        return make_metrics(config.plan().metrics, task)
    return known_metrics(run.resolved["training"].get("metrics", ()), task)


def run_augment(run: Run) -> Transform | None:
    """Return how a run augmented training images."""
    config = run_config(run)
    if config is not None:
        return config.work().augment
    if (was := run.resolved["training"]["augment"]) is not None:
        raise UsageError(
            f"{run.folder} was trained with augment={was}; give augment= the same, another one or None.",
            code="not-rebuildable",
            got=was,
        )
    return None


def is_model_name(name: str) -> bool:
    """Return whether a model can be built by this name."""
    return name in MODELS or name.startswith(HUB_PREFIX)


def _with_optimizer(algorithm: Algorithm, described: dict[str, Any]) -> Algorithm:
    """Return a recipe over the plain optimizer that a run describes, where it is one that has a name."""
    while "base" in described:
        described = described["base"]
    kinds = {kind.__name__: kind for kind in OPTIMIZERS.values()}
    if described["part"] not in kinds:
        return algorithm
    settings = {name: value for name, value in described.items() if name != "part"}
    return algorithm.with_optimizer(kinds[described["part"]](**settings))

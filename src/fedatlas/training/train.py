"""Train an algorithm on a federation: the rounds, their evaluation, their record."""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from fedatlas.client.model import skips_single_examples
from fedatlas.data.dataset import Dataset, first_few
from fedatlas.data.federation import Federation
from fedatlas.data.task import Task
from fedatlas.engines.simulator import Simulator
from fedatlas.errors import DataError, UsageError, expect
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import always, make_metrics
from fedatlas.runs.previews import PORTRAITS, portraits
from fedatlas.runs.run import Run
from fedatlas.runs.writer import RunFolder, RunWriter, machine, versions
from fedatlas.seeds import repeatable
from fedatlas.training.callbacks import Beginning, Callback, Followers
from fedatlas.training.loop import TrainingLoop
from fedatlas.training.model import make_model, usual_model
from fedatlas.training.progress import Progress, make_progress
from fedatlas.training.rounds import Round
from fedatlas.training.settings import Settings, Shortcuts, TrainingPlan, with_shortcuts


def train(
    federation: Federation,
    algorithm: Algorithm | str = "fedavg",
    settings: Settings | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | bool | None = None,
    callbacks: Sequence[Callback] = (),
    **shortcuts: Unpack[Shortcuts],
) -> Run:
    """Train an algorithm on a federation and return the run.

    ``algorithm`` is an algorithm, or a name as ``fedatlas list algorithms`` shows them.
    ``settings`` holds all settings. Those that nearly every call sets, such as ``model``, ``rounds`` and ``seed``, may
    also be given as keywords, which win over ``settings``. ``folder`` is where the run is kept; without one it goes to
    a new temporary folder. ``progress`` shows a bar; None shows it on a terminal, and an object with the methods of
    ``fedatlas.training.progress.Progress`` is called instead after every round. ``callbacks`` follow the run and may
    end it: ``EarlyStopping()``, ``CsvLog()``, ``TensorBoardLog()`` and others, or your subclass of ``Callback``.

        train(federation, fedavg(), rounds=5)
        train(federation, fedavg(), Settings(steps=10, engine="graph"), rounds=5)
    """
    do = "Make one of a data set: fedatlas.federate(data, fedatlas.data.Iid(num_clients=10))."
    expect(federation, Federation, "train(federation) must be a federation", do)
    algorithm = named_algorithm(algorithm)
    settings = with_shortcuts(settings, shortcuts)
    return train_run(
        federation,
        algorithm,
        settings,
        RunFolder(
            folder=Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="fedatlas-")),
            resume=resume,
            overwrite=overwrite,
        ),
        progress=make_progress(progress, algorithm.name, settings.rounds),
        callbacks=callbacks,
    )


def train_run(
    federation: Federation,
    algorithm: Algorithm,
    settings: Settings,
    kept: RunFolder,
    *,
    progress: Progress,
    callbacks: Sequence[Callback] = (),
    stop: Callable[[Round], bool] | None = None,
) -> Run:
    """Train as ``train`` does, from settings, a folder and a progress that are already objects.

    ``stop`` is asked after each round whether the run shall end there; it can be resumed.
    """
    followers = Followers(progress, callbacks)
    plan, seeds, device = settings.plan, settings.seeds, torch.device(settings.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"device {settings.device!r} was asked for, but torch sees no GPU here; use --device cpu.",
            code="device",
            got=settings.device,
        )
    if settings.optimizer is not None:
        algorithm = algorithm.with_optimizer(settings.optimizer)
    plan.cohort_size(len(federation.training_ids))
    for remark in algorithm.check_clients(federation):
        warnings.warn(remark, stacklevel=3)
    model, options = usual_model(settings.model, settings.model_options, federation.data, algorithm)
    settings = replace(settings, model=model, model_options=options)
    network = make_model(model, options, federation, algorithm, seeds.model, try_on=device)
    check_clients_can_train(federation, settings.least_batch)
    warn_of_idle_clients(network, federation, settings.batch_size)
    resolved = resolve(federation, algorithm, network, settings)
    with _simulator(algorithm, network, federation, settings) as simulator:
        resolved |= {"machine": machine(device, simulator.workers, simulator.engine), "versions": versions()}
        writer = RunWriter(kept.folder, resolved, config=kept.config, resume=kept.resume, overwrite=kept.overwrite)
        main = always(federation.data.task)[0]
        begin = partial(Beginning, folder=kept.folder, resolved=resolved)
        followers.expect(lambda n: begin(round=n, metric=main.name, higher_is_better=main.higher_is_better))
        try:
            with repeatable(device):
                TrainingLoop(
                    algorithm,
                    federation,
                    simulator,
                    plan,
                    seeds,
                    writer,
                    followers,
                    put_off=lambda: _write_portraits(writer, federation),
                ).run(_ending(followers, stop))
        finally:
            writer.close()
    return Run(kept.folder)


def _simulator(algorithm: Algorithm, network: nn.Module, federation: Federation, settings: Settings) -> Simulator:
    return Simulator(
        algorithm,
        network,
        federation,
        work=settings.work,
        seed=settings.seeds.batches,
        metrics=settings.metrics,
        intervals=settings.intervals,
        device=torch.device(settings.device),
        workers=settings.workers,
        engine=settings.engine,
        profile=settings.profile,
    )


def _ending(followers: Followers, stop: Callable[[Round], bool] | None) -> Callable[[Round], bool] | None:
    """Return what is asked after each round whether the run ends; None where nothing can end it early."""
    if not followers.callbacks:
        return stop
    return lambda found: followers.after(found) or (stop is not None and stop(found))


def _write_portraits(writer: RunWriter, federation: Federation) -> None:
    content = portraits(federation)
    if content is not None:
        writer.add(PORTRAITS, content)


def named_algorithm(algorithm: Algorithm | str) -> Algorithm:
    """Return an algorithm, one given by its name with its defaults."""
    if isinstance(algorithm, str):
        from fedatlas.algorithms.registry import build_algorithm  # recipes are above this room, only names come down

        return build_algorithm(algorithm)
    expect(
        algorithm,
        Algorithm,
        "train(algorithm) must be an algorithm or a name",
        "Write fedatlas.algorithms.fedavg(), or another recipe.",
    )
    return algorithm


def check_clients_can_train(federation: Federation, least_batch: int) -> None:
    """Raise DataError if a client that is to train has too few examples for any minibatch."""
    clients = [federation.clients[number] for number in federation.training_ids]
    few = [client for client in clients if len(client.train) < least_batch]
    if few and least_batch > 1:
        raise DataError(
            f"least_batch is {least_batch}, and {len(few)} of {len(clients)} clients have fewer training examples: "
            f"{first_few([client.name for client in few])}; {few[0].name} has {len(few[0].train)}. They would never "
            "take a step. Lower least_batch, or leave them out (data.leave_out).",
            code="too-few-examples",
            clients=[client.name for client in few],
            got=len(few[0].train),
            least=least_batch,
        )


def warn_of_idle_clients(network: nn.Module, federation: Federation, batch_size: int) -> None:
    """Warn of clients whose batches all have one example, which batch norm cannot take; raise an error if all do."""
    if not skips_single_examples(network):
        return
    clients = [federation.clients[number] for number in federation.training_ids]
    idle = [client.name for client in clients if min(batch_size, len(client.train)) < 2]
    why = "batch norm cannot be trained by batches of one example"
    remedy = "Use larger batches, clients with more examples, or another norm (--set model.norm=group)."
    if len(idle) == len(clients):
        raise UsageError(
            f"no client would take a step: {why}, and all would be. {remedy}", code="no-step", got=batch_size
        )
    if idle:
        who = f"{first_few(idle)} ({len(idle)} of {len(clients)} clients)" if len(idle) > 1 else idle[0]
        warnings.warn(f"{who} will take no step: {why}. {remedy}", stacklevel=3)


def resolve(federation: Federation, algorithm: Algorithm, network: nn.Module, settings: Settings) -> dict[str, Any]:
    """Return every setting of a run as plain values."""
    model, work = settings.model, settings.work
    return {
        "federation": {
            "data": federation.name,
            "kind": federation.data.kind,
            **({} if federation.data.task.has_classes else {"task": federation.data.task.name}),
            "partition": federation.partition,
            "origin": None if federation.origin is None else asdict(federation.origin),
            "classes": list(federation.data.classes),
            "fingerprint": fingerprint(federation),
            "form": _form(federation.data),
            "clients": [
                {
                    "name": c.name,
                    "domain": c.domain,
                    **({} if c.type is None else {"type": c.type}),
                    "held_out": c.held_out,
                    "num_train": len(c.train),
                    "num_test": len(c.test),
                    "label_counts": federation.label_counts(i).int().tolist(),
                }
                for i, c in enumerate(federation.clients)
            ],
        },
        "model": {
            "name": model if isinstance(model, str) else type(network).__name__,
            "options": {key: list(v) if isinstance(v, tuple) else v for key, v in settings.model_options.items()},
            "num_parameters": sum(p.numel() for p in network.parameters()),
        },
        "algorithm": algorithm.describe(),
        "training": {
            **{k: v for k, v in asdict(work).items() if k not in ("augment", "least_batch")},
            **({"least_batch": work.least_batch} if work.least_batch > 1 else {}),
            "augment": repr(work.augment) if work.augment is not None else None,
            **_described(settings.plan, federation.data.task),
        },
        "seeds": asdict(settings.seeds),
    }


def _form(data: Dataset) -> dict[str, Any]:
    """Return the form of examples as plain values; how inputs were made from a table, only where they were."""
    prepared = {} if data.preparation is None else {"preparation": data.preparation.described()}
    return {
        "shape": list(data.inputs.shape[1:]),
        "vocabulary": list(data.vocabulary),
        "mean": list(data.mean),
        "std": list(data.std),
        **prepared,
    }


def _described(plan: TrainingPlan, task: Task) -> dict[str, Any]:
    """Return the plan as plain values; metrics and their direction only where there are further ones, or intervals."""
    values = {own.name: getattr(plan, own.name) for own in fields(plan) if own.name not in ("metrics", "intervals")}
    further = make_metrics(plan.metrics, task)
    if further:
        values["metrics"] = [one.name for one in further]
    if further or not task.has_classes:
        values["lower_is_better"] = [one.name for one in (*always(task), *further) if not one.higher_is_better]
    return values | ({"intervals": True} if plan.intervals else {})


def fingerprint(federation: Federation) -> str:
    """Return a hash of the examples and of who holds them."""
    digest = hashlib.blake2b(digest_size=16)
    # Not as bytes: inputs may lie on the disk, and be larger than the memory.
    digest.update(federation.data.inputs.cpu().contiguous().numpy().data)
    digest.update(federation.data.labels.cpu().numpy().tobytes())
    for client in federation.clients:
        digest.update(repr((client.name, client.domain, client.held_out, client.transform)).encode())
        for part in (client.train, client.test):
            digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()

"""Train an algorithm on a federation: the rounds, their evaluation, their record."""

from __future__ import annotations

import copy
import hashlib
import tempfile
import time
from collections.abc import Callable, MutableMapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedatlas.algorithm import Algorithm
from fedatlas.client import LocalWork, Precision
from fedatlas.data.federation import Federation, Transform
from fedatlas.errors import TrainingError, UsageError
from fedatlas.evaluation import summarize
from fedatlas.models import build_model, without_running_statistics
from fedatlas.optimizers import LocalOptimizer
from fedatlas.plan import TrainingPlan as TrainingPlan
from fedatlas.portraits import write_portraits
from fedatlas.progress import Progress, make_progress
from fedatlas.rounds import RoundRecord, Transport, initial_state, play_round
from fedatlas.runs import Run, RunWriter, machine, versions
from fedatlas.seeds import Seeds, derive
from fedatlas.simulate import ClientRunner, Engine, Simulator, repeatable
from fedatlas.types import ClientInfo, ClientScore, Memory

Model = str | nn.Module | Callable[[], nn.Module]


def train(
    federation: Federation,
    algorithm: Algorithm,
    *,
    model: Model = "cnn",
    model_options: dict[str, Any] | None = None,
    optimizer: LocalOptimizer | None = None,
    rounds: int = 20,
    cohort: int | float | None = None,
    epochs: int = 1,
    steps: int | None = None,
    batch_size: int = 32,
    precision: Precision = "float32",
    seed: int | Seeds = 0,
    device: str = "cpu",
    workers: int | None = None,
    engine: Engine = "auto",
    augment: Transform | None = None,
    evaluate_every: int = 1,
    test_own: bool = False,
    checkpoint_every: int | None = None,
    memory_limit: float | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Run:
    """Train an algorithm on a federation and return the run.

    ``model`` is a name from ``fedatlas list`` (with ``model_options``), a module, or a function that makes one.
    ``augment`` is a random change of training images, such as ``fedatlas.data.Augment()``. ``precision="bfloat16"``
    lets the network compute with half the bits while it trains. ``test_own`` also tests each client's own model before
    the server averages. ``engine`` is how clients run on this machine (docs/engines.md). ``folder`` is where the run is
    kept; without one it goes to a new temporary folder. ``progress`` shows a bar; None shows it on a terminal.
    """
    work = LocalWork(epochs=epochs, steps=steps, batch_size=batch_size, precision=precision, augment=augment)
    plan = TrainingPlan(
        rounds=rounds,
        cohort=cohort,
        evaluate_every=evaluate_every,
        test_own=test_own,
        checkpoint_every=checkpoint_every,
        memory_limit=memory_limit,
    )
    seeds = Seeds.of(seed) if isinstance(seed, int) else seed
    if optimizer is not None:
        algorithm = algorithm.with_optimizer(optimizer)
    return train_run(
        federation,
        algorithm,
        model=model,
        model_options=model_options,
        work=work,
        plan=plan,
        seeds=seeds,
        device=device,
        workers=workers,
        engine=engine,
        folder=Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="fedatlas-")),
        resume=resume,
        overwrite=overwrite,
        progress=make_progress(progress, algorithm.name, plan.rounds),
    )


def train_run(
    federation: Federation,
    algorithm: Algorithm,
    *,
    model: Model,
    model_options: dict[str, Any] | None = None,
    work: LocalWork,
    plan: TrainingPlan,
    seeds: Seeds,
    device: str,
    workers: int | None,
    engine: Engine = "auto",
    folder: Path,
    resume: bool,
    overwrite: bool,
    progress: Progress,
    config: str | None = None,
) -> Run:
    """Train as ``train`` does, from settings that are already objects; ``config`` is the TOML they came from."""
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {device!r} was asked for, but torch sees no GPU here; use --device cpu.")
    plan.cohort_size(len(federation.training_ids))
    network = make_model(model, model_options or {}, federation, algorithm, seeds.model)
    resolved = resolve(federation, algorithm, network, model, model_options or {}, work, plan, seeds)
    with Simulator(
        algorithm,
        network,
        federation,
        work=work,
        seed=seeds.batches,
        device=place,
        workers=workers,
        engine=engine,
    ) as simulator:
        resolved |= {"machine": machine(place, simulator.workers, simulator.engine), "versions": versions()}
        writer = RunWriter(folder, resolved, config=config, resume=resume, overwrite=overwrite)
        try:
            write_portraits(federation, folder)
            TrainingLoop(algorithm, federation, simulator, plan, seeds, writer, progress).run()
        finally:
            writer.close()
    return Run(folder)


class Host(Transport, Protocol):
    """What a training loop asks of the place where clients run, beyond running them."""

    runner: ClientRunner
    """Its workbench says how parameters begin and which are personal."""
    roster: list[ClientInfo]
    memory: MutableMapping[int, Memory]
    """What is kept of each client in a checkpoint."""
    changed: set[int]
    """Clients of whom it changed since somebody last cleared this set."""

    def place(self, tensor: Tensor) -> Tensor:
        """Return a tensor that was read from a file where, and laid out as, the model's own are."""
        ...

    def commit(self) -> None:
        """Take over what clients remember after a round that was played to its end."""
        ...

    def remarks(self) -> dict[str, Any]:
        """Return what the record of the round shall also say."""
        ...

    def fallbacks(self) -> dict[str, int]:
        """Return why clients were left to a slower way of running them, and how often."""
        ...


class TrainingLoop:
    """The rounds of one run, from its checkpoint (or from nothing) to its end."""

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        host: Host,
        plan: TrainingPlan,
        seeds: Seeds,
        writer: RunWriter,
        progress: Progress,
    ) -> None:
        self.algorithm, self.federation, self.host = algorithm, federation, host
        self.plan, self.seeds, self.writer, self.progress = plan, seeds, writer, progress
        self.domains = {i: client.domain for i, client in enumerate(federation.clients)}
        shared, buffers = host.runner.bench.shared()
        self.state = initial_state(algorithm, shared, buffers, host.roster)
        self.saved_round = 0
        self.complete_round = 0

    def run(self) -> None:
        """Play the rounds that are left."""
        self._restore()
        try:
            with self.progress, repeatable(self.host.device):
                while self.state.round < self.plan.rounds:
                    self._round()
        except (KeyboardInterrupt, TrainingError):
            # What clients remember and what the server holds belong together only at the end of a round.
            if self.complete_round == self.state.round > self.saved_round:
                self._save()
            raise
        if self.saved_round < self.state.round:
            self._save()

    def _restore(self) -> None:
        checkpoint = None
        limit = self.plan.memory_bytes()
        self.host.memory = self.writer.checkpoints.memories(limit, self.host.place)
        if self.writer.checkpoints.exists():
            checkpoint = self.writer.checkpoints.load(self.host.place, limit)
            self.writer.checkpoints.clear_leftovers()
            memory: Memory = {key: {} for key in self.state.memory} | checkpoint.state.memory
            self.state = replace(checkpoint.state, memory=memory)
            self.host.memory = checkpoint.clients
            self.saved_round = self.complete_round = self.state.round
        self.writer.open(checkpoint)
        self.progress.start_from(self.state.round)

    def _round(self) -> None:
        began = time.perf_counter()
        number = self.state.round + 1
        last = number == self.plan.rounds
        evaluated = last or number % self.plan.evaluate_every == 0
        state, record = play_round(
            self.algorithm,
            self.state,
            self.host.roster,
            self.host,
            cohort_size=self.plan.cohort_size(len(self.federation.training_ids)),
            rounds=self.plan.rounds,
            seed=self.seeds.sampling,
            test_own=self.plan.test_own and evaluated,
        )
        self.state = state
        self.host.commit()
        trained = time.perf_counter()
        scores = self._evaluate() if evaluated else []
        tested = time.perf_counter()
        summary = self._record(record, scores)
        timing: dict[str, Any] = {"round": state.round, "train": trained - began, "evaluate": tested - trained}
        if fallbacks := self.host.fallbacks():
            timing["fallbacks"] = fallbacks
        self.writer.write("timings.jsonl", [timing])
        self.complete_round = state.round
        if last or state.round % (self.plan.checkpoint_every or self.plan.evaluate_every) == 0:
            self._save()
        self.progress.advance(state.round, summary)

    def _evaluate(self) -> list[ClientScore]:
        try:
            return list(self.host.evaluate(self.state.shared, self.state.buffers, range(len(self.federation))))
        except TrainingError as error:
            raise TrainingError(
                f"{error.message}: the model broke in this round. Lower the learning rate.",
                client=error.client,
                round=self.state.round,
                stage=error.stage,
            ) from None

    def _record(self, record: RoundRecord, scores: list[ClientScore]) -> dict[str, Any]:
        clients = self.federation.clients
        line: dict[str, Any] = {
            "round": record.round,
            "cohort": list(record.cohort),
            "answered": list(record.weights),
            "train_loss": sum(record.weights[c] * record.losses[c] for c in record.weights),
        }
        summary: dict[str, Any] = {}
        if scores:
            personal = bool(self.host.runner.bench.personal)
            line["tested"] = {
                "model": "the aggregated shared parameters" + (" with each client's own" if personal else ""),
                "data": "each client's test part",
                "clients": "all, held-out ones apart",
            }
            summary = summarize([s for s in scores if not clients[s.client].held_out], self.domains)
            line["evaluation"] = summary
            if held_out := summarize([s for s in scores if clients[s.client].held_out], self.domains):
                line["held_out"] = held_out
        if record.own:
            line["own"] = summarize(record.own, self.domains)
        line |= self.host.remarks()
        own = {score.client: score for score in record.own}
        tested = {score.client: score for score in scores}
        lines = []
        for i in sorted(tested.keys() | record.weights.keys()):
            entry: dict[str, Any] = {"round": record.round, "client": clients[i].name, "domain": clients[i].domain}
            entry |= {"held_out": clients[i].held_out, "trained": i in record.weights}
            if i in record.weights:
                entry |= {"weight": record.weights[i], "train_loss": record.losses[i]}
            if i in tested:
                score = tested[i]
                entry |= {"accuracy": score.accuracy, "loss": score.loss, "num_tested": score.num_examples}
            if i in own:
                entry |= {"own_accuracy": own[i].accuracy, "own_loss": own[i].loss}
            lines.append(entry)
        self.writer.write("rounds.jsonl", [line])
        self.writer.write("clients.jsonl", lines)
        return summary

    def _save(self) -> None:
        self.writer.save(self.state, self.host.memory, self.host.changed)
        self.host.changed.clear()
        self.saved_round = self.state.round


def make_model(
    model: Model, options: dict[str, Any], federation: Federation, algorithm: Algorithm, seed: int
) -> nn.Module:
    """Return the network of a run, with the algorithm's extensions around it."""
    network: nn.Module
    if isinstance(model, str):
        network = build_model(
            model,
            num_classes=federation.num_classes,
            input_shape=tuple(federation.data.inputs.shape[1:]),
            vocabulary_size=len(federation.data.vocabulary),
            seed=seed,
            **options,
        )
    elif isinstance(model, nn.Module):
        network = copy.deepcopy(model)  # the caller's stays as it is
    else:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "model"))
            network = model()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "extensions"))
        network = algorithm.extend(network)
    return without_running_statistics(network) if algorithm.split.buffers == "none" else network


def resolve(
    federation: Federation,
    algorithm: Algorithm,
    network: nn.Module,
    model: Model,
    model_options: dict[str, Any],
    work: LocalWork,
    plan: TrainingPlan,
    seeds: Seeds,
) -> dict[str, Any]:
    """Return every setting of a run as plain values."""
    return {
        "federation": {
            "data": federation.name,
            "kind": federation.data.kind,
            "partition": federation.partition,
            "classes": list(federation.data.classes),
            "fingerprint": fingerprint(federation),
            "clients": [
                {
                    "name": c.name,
                    "domain": c.domain,
                    "held_out": c.held_out,
                    "num_train": len(c.train),
                    "num_test": len(c.test),
                    "label_counts": [int(n) for n in federation.label_counts(i)],
                }
                for i, c in enumerate(federation.clients)
            ],
        },
        "model": {
            "name": model if isinstance(model, str) else type(network).__name__,
            "options": {key: list(v) if isinstance(v, tuple) else v for key, v in model_options.items()},
            "num_parameters": sum(p.numel() for p in network.parameters()),
        },
        "algorithm": algorithm.describe(),
        "training": {
            **{k: v for k, v in asdict(work).items() if k != "augment"},
            "augment": repr(work.augment) if work.augment is not None else None,
            **asdict(plan),
        },
        "seeds": asdict(seeds),
    }


def fingerprint(federation: Federation) -> str:
    """Return a hash of the examples and of who holds them."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(federation.data.inputs.cpu().contiguous().numpy().tobytes())
    digest.update(federation.data.labels.cpu().numpy().tobytes())
    for client in federation.clients:
        digest.update(repr((client.name, client.domain, client.held_out, client.transform)).encode())
        for part in (client.train, client.test):
            digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()

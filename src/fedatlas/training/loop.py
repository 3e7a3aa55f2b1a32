"""The rounds of one run: played, evaluated, recorded and saved."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from fedatlas.client.runner import ClientRunner
from fedatlas.client.timing import Stopwatch
from fedatlas.data.federation import Federation
from fedatlas.errors import TrainingError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.types import ClientInfo, ClientScore, Memory
from fedatlas.runs.writer import RunWriter
from fedatlas.seeds import Seeds
from fedatlas.training.draws import Draws
from fedatlas.training.metrics import summarize
from fedatlas.training.progress import Progress
from fedatlas.training.rounds import RoundRecord, Transport, initial_state, play_round
from fedatlas.training.settings import TrainingPlan


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
        *,
        put_off: Callable[[], None] | None = None,
    ) -> None:
        """Take what may be done while clients train, once, in ``put_off``."""
        self.algorithm, self.federation, self.host = algorithm, federation, host
        self.plan, self.seeds, self.writer, self.progress = plan, seeds, writer, progress
        self.domains = {i: client.domain for i, client in enumerate(federation.clients)}
        self.about: list[dict[str, Any]] = [
            {"client": client.name, "domain": client.domain, "held_out": client.held_out} for client in federation
        ]
        shared, buffers = host.runner.bench.shared()
        self.state = initial_state(algorithm, shared, buffers, host.roster)
        cohort_size = plan.cohort_size(len(federation.training_ids))
        self.draws = Draws(algorithm.sampler, host.roster, cohort_size, seeds.sampling)
        self.watch = Stopwatch()
        self.saved_round = 0
        self.complete_round = 0
        """The last round of which all is written."""
        self._unwritten = put_off

    def run(self) -> None:
        """Play the rounds that are left."""
        self.writer.begin()
        self._restore()
        self.watch = Stopwatch()
        try:
            with self.progress:
                while self.state.round < self.plan.rounds:
                    self._round()
        except (KeyboardInterrupt, TrainingError):
            # What clients remember and what the server holds belong together only at the end of a round.
            self._write_up()
            if self.complete_round == self.state.round > self.saved_round:
                self._save()
            raise
        self._write_up()
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
        began, watch = time.perf_counter(), self.watch
        number = self.state.round + 1
        last = number == self.plan.rounds
        evaluated = last or number % self.plan.evaluate_every == 0
        state, record = play_round(
            self.algorithm,
            self.state,
            self.host.roster,
            self.host,
            self.draws,
            rounds=self.plan.rounds,
            test_own=self.plan.test_own and evaluated,
            watch=watch,
            put_off=self._write_up,
        )
        self.state = state
        self.host.commit()
        watch.lap("memory")
        trained = time.perf_counter()
        scores = self._evaluate() if evaluated else []
        tested = time.perf_counter()
        watch.lap("evaluation")
        summary, line = self._summary(record, scores)
        watch.lap("records")
        timing: dict[str, Any] = {"round": state.round, "train": trained - began, "evaluate": tested - trained}
        # What comes after this line, a checkpoint, is counted in the next one.
        timing["stages"] = watch.taken()
        if record.client_seconds:
            timing["clients"] = record.client_seconds
        if fallbacks := self.host.fallbacks():
            timing["fallbacks"] = fallbacks

        def write() -> None:
            self._write(record, scores, line)
            self.writer.write("timings.jsonl", [timing])
            self.complete_round = record.round

        self._unwritten = write
        if last or state.round % (self.plan.checkpoint_every or self.plan.evaluate_every) == 0:
            self._write_up()
            watch.lap("records")
            self._save()
            watch.lap("checkpoints")
        self.progress.advance(state.round, summary)
        watch.lap("records")

    def _write_up(self) -> None:
        """Write the last round's records, unless they are: they are put off until clients train again."""
        write, self._unwritten = self._unwritten, None
        if write is not None:
            write()

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

    def _summary(self, record: RoundRecord, scores: list[ClientScore]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metrics of a round's evaluation, and the round's line."""
        clients = self.federation.clients
        line: dict[str, Any] = {
            "round": record.round,
            "cohort": list(record.cohort),
            "answered": list(record.weights),
            "train_loss": _mean_loss(record),
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
        return summary, line | self.host.remarks()

    def _write(self, record: RoundRecord, scores: list[ClientScore], line: dict[str, Any]) -> None:
        """Write a round's line and those of its clients."""
        own = {score.client: score for score in record.own}
        tested = {score.client: score for score in scores}
        lines = []
        for i in sorted(tested.keys() | record.weights.keys()):
            entry = {"round": record.round, **self.about[i], "trained": i in record.losses}
            if i in record.weights:
                entry["weight"], entry["train_loss"] = record.weights[i], record.losses.get(i)
            if (score := tested.get(i)) is not None:
                entry["accuracy"], entry["loss"], entry["num_tested"] = score.accuracy, score.loss, score.num_examples
            if i in own:
                entry["own_accuracy"], entry["own_loss"] = own[i].accuracy, own[i].loss
            lines.append(entry)
        self.writer.write("rounds.jsonl", [line])
        self.writer.write("clients.jsonl", lines)

    def _save(self) -> None:
        self.writer.save(self.state, self.host.memory, self.host.changed)
        self.host.changed.clear()
        self.saved_round = self.state.round


def _mean_loss(record: RoundRecord) -> float | None:
    """Return the mean loss of the clients that took a step, as they count; None where nobody did."""
    losses = record.losses
    total = sum(record.weights[client] * loss for client, loss in losses.items())
    if len(losses) == len(record.weights):
        return total
    counted = sum(record.weights[client] for client in losses)
    return total / counted if counted else None

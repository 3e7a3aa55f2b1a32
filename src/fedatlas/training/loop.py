"""The rounds of one run: played, evaluated, recorded and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from fedatlas.client.timing import Stopwatch
from fedatlas.data.federation import Federation
from fedatlas.errors import RunFolderError, TrainingError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import always, make_metrics
from fedatlas.parts.sharing import One
from fedatlas.parts.types import ClientScore, ServerState
from fedatlas.runs.files import damaged
from fedatlas.runs.writer import RunWriter
from fedatlas.seeds import Seeds
from fedatlas.training.clients import SavedClients
from fedatlas.training.groups import evaluate
from fedatlas.training.interrupts import held_interrupts
from fedatlas.training.metrics import Summary, client_figures, share_tests
from fedatlas.training.progress import Progress
from fedatlas.training.rounds import Round, RoundRecord, initial_state, play, restored_state
from fedatlas.training.saving import Saver
from fedatlas.training.settings import TrainingPlan

MANY_CLIENTS = 10_000
"""Beyond so many, a line for each client is written at the last evaluation only."""


class TrainingLoop:
    """The rounds of one run, from its checkpoint (or from nothing) to its end."""

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        clients: SavedClients,
        plan: TrainingPlan,
        seeds: Seeds,
        writer: RunWriter,
        progress: Progress,
        *,
        put_off: Callable[[], None] | None = None,
        save_beside: bool = True,
    ) -> None:
        """Take work that may be done while clients train, once, as ``put_off``.

        With ``save_beside`` checkpoints may be written in a thread while rounds go on.
        """
        self.algorithm, self.federation, self.clients = algorithm, federation, clients
        self.plan, self.seeds, self.writer, self.progress = plan, seeds, writer, progress
        task = federation.data.task
        self.summary = Summary(
            (*always(task), *make_metrics(plan.metrics, task)),
            {i: client.kind for i, client in enumerate(federation.clients)},
            shared_tests=plan.intervals and share_tests(federation),
        )
        self.about: list[dict[str, Any]] = [
            {"client": client.name, "domain": client.domain, "held_out": client.held_out} for client in federation
        ]
        self.has_personal = bool(clients.initial().personal)
        self.state = initial_state(algorithm, clients)
        self.saved_round = 0
        self.complete_round = 0
        """The last round whose records are all written."""
        self.saver = Saver(every=plan.checkpoint_every, beside=save_beside)
        self._stops = False
        self._unwritten = put_off
        self._watch = Stopwatch()

    def run(self, stop: Callable[[Round], bool] | None = None) -> None:
        """Play the rounds that are left, or until ``stop`` returns true for a round."""
        self._stops = stop is not None
        self.writer.begin()
        self._restore()
        try:
            with self.progress:
                for found in self._rounds():
                    with held_interrupts():  # a round that was trained is also tested and kept
                        self._finish(found)
                    if stop is not None and stop(found):
                        break
        except (KeyboardInterrupt, TrainingError):
            # The clients' memory and the server's state belong together only at the end of a round.
            self._write_up()
            if self.complete_round == self.state.round > self.saved_round:
                self._save(wait=True)
            self.saver.wait()
            raise
        except BaseException:
            with suppress(RunFolderError):  # what ended the run is the error to show
                self.saver.wait()
            raise
        self._write_up()
        if self.saved_round < self.state.round:
            self._save(wait=True)
        self.saver.wait()

    def _rounds(self) -> Iterator[Round]:
        return play(
            self.algorithm,
            self.clients,
            rounds=self.plan.rounds,
            cohort_size=self.plan.cohort_size(len(self.federation.training_ids)),
            seed=self.seeds.sampling,
            state=self.state,
            test_own=lambda number: self.plan.test_own and self._is_evaluated(number),
            while_training=self._write_up,
        )

    def _is_evaluated(self, number: int) -> bool:
        return number == self.plan.rounds or number % self.plan.evaluate_every == 0

    def _restore(self) -> None:
        limit = self.plan.memory_bytes()
        self.clients.memory = self.writer.checkpoints.memories(limit, self.clients.place)
        if self.writer.checkpoints.exists():
            checkpoint = self.writer.checkpoints.load(self.clients.place, limit)
            self.writer.checkpoints.clear_leftovers()
            self._check_same_network(checkpoint.state)
            self.state = restored_state(self.algorithm, checkpoint.state)
            self.clients.memory = checkpoint.clients
            self.saved_round = self.complete_round = self.state.round
        self.writer.open()
        self.progress.start_from(self.state.round)

    def _check_same_network(self, found: ServerState) -> None:
        """Raise RunFolderError if a checkpoint's parameters are of another network than this run's."""
        if {k: t.shape for k, t in found.shared.items()} != {k: t.shape for k, t in self.state.shared.items()}:
            raise damaged(self.writer.checkpoints.folder, "it holds the parameters of another network")

    def _finish(self, found: Round) -> None:
        """Evaluate a round, prepare its records and save the checkpoint if it is due."""
        self.state, record = found.state, found.record
        remarks = self.clients.remarks(record.round)
        # The time since the last round was spent there and is counted by it.
        watch = Stopwatch()

        def complete(scores: list[ClientScore], watch: Stopwatch = watch) -> None:
            watch.lap("evaluation")
            self._complete(record, scores, remarks, found.seconds, watch)

        if not self._is_evaluated(record.round):
            complete([])
        elif not self._is_tested_later(complete):
            scores = self._evaluate()
            remarks = self.clients.remarks(record.round)
            complete(scores)

    def _is_tested_later(self, complete: Callable[[list[ClientScore], Stopwatch], None]) -> bool:
        """Return whether the next round's training tests the model too; ``complete`` gets the scores then."""
        state = self.state
        if self._stops or state.round == self.plan.rounds or type(self.algorithm.sharing) is not One:
            return False

        def then(scores: list[ClientScore]) -> None:
            complete(scores, Stopwatch())  # the next round counts the time, in which its clients also trained
            self._write_up()

        return self.clients.test_later(state.shared, state.buffers, state.round, then)

    def _complete(
        self,
        record: RoundRecord,
        scores: list[ClientScore],
        remarks: Mapping[str, Any],
        seconds: Mapping[str, float],
        watch: Stopwatch,
    ) -> None:
        """Prepare a round's records, and save the checkpoint if it is due."""
        summary, line = self._summary(record, scores)
        line |= remarks
        watch.lap("records")
        timing: dict[str, Any] = {
            "round": record.round,
            "train": sum(seconds.values()),
            "evaluate": watch.seconds["evaluation"],
        }
        # A checkpoint, which is written after this line, is counted in the next one.
        timing["stages"] = _added(seconds, watch.taken(), self._watch.taken())
        if record.client_seconds:
            timing["clients"] = record.client_seconds
        if beside := self.saver.seconds_beside():
            timing["saved_beside"] = beside
        if fallbacks := self.clients.fallbacks():
            timing["fallbacks"] = fallbacks

        def write() -> None:
            self._write(record, scores, line)
            self.writer.write("timings.jsonl", [timing])
            self.complete_round = record.round

        self._unwritten = write
        self._watch = watch
        forced = record.round == self.plan.rounds or self.saver.is_forced(record.round)
        if forced or self.saver.is_due():
            self._write_up()
            watch.lap("records")
            self._save(wait=forced)
            watch.lap("checkpoints")
        self.progress.advance(record.round, summary)
        watch.lap("records")

    def _write_up(self) -> None:
        """Write the last round's records, unless they are: they are put off until clients train again."""
        write, self._unwritten = self._unwritten, None
        if write is not None:
            with held_interrupts():
                write()

    def _evaluate(self) -> list[ClientScore]:
        try:
            return evaluate(self.algorithm, self.clients, self.state)
        except TrainingError as error:
            raise TrainingError(
                f"{error.message}: the model broke in this round. Lower the learning rate.",
                client=error.client,
                round=self.state.round,
                stage=error.stage,
                code=error.code,
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
        if record.combination:
            line["combination"] = dict(record.combination)
        if record.sharing:
            line["groups"] = dict(record.sharing)
        summary: dict[str, Any] = {}
        if scores:
            line["tested"] = {
                "model": self._tested(),
                "data": "each client's test part",
                "clients": "all, held-out ones apart",
            }
            groups = None if self.state.group_of is None else dict(enumerate(self.state.group_of.tolist()))
            summary = self.summary.of([s for s in scores if not clients[s.client].held_out], groups)
            line["evaluation"] = summary
            if held_out := self.summary.of([s for s in scores if clients[s.client].held_out], groups):
                line["held_out"] = held_out
        if record.own:
            line["own"] = self.summary.of(record.own)
        return summary, line

    def _tested(self) -> str:
        """Return which model a client is tested with, in words."""
        whose = "the aggregated shared parameters" + (" of its group" if self.state.group_of is not None else "")
        return whose + (" with each client's own" if self.has_personal else "")

    def _write(self, record: RoundRecord, scores: list[ClientScore], line: dict[str, Any]) -> None:
        """Write a round's line and those of its clients."""
        own = {score.client: score for score in record.own}
        tested = {score.client: score for score in scores}
        lines = []
        # Of many clients only the last evaluation has a line for each; those before are in the round's summary.
        brief = len(self.about) > MANY_CLIENTS and record.round < self.plan.rounds
        for i in sorted(record.weights.keys() | (set() if brief else tested.keys())):
            entry = {"round": record.round, **self.about[i], "trained": i in record.losses}
            if record.groups is not None:
                entry["group"] = record.groups[i]
            if i in record.weights:
                entry["weight"], entry["train_loss"] = record.weights[i], record.losses.get(i)
            if (score := tested.get(i)) is not None:
                entry |= client_figures(score)
            if i in own:
                entry |= {f"own_{metric.name}": own[i].values[metric.name] for metric in self.summary.metrics[:2]}
            lines.append(entry)
        self.writer.write("rounds.jsonl", [line])
        self.writer.write("clients.jsonl", lines)

    def _save(self, *, wait: bool) -> None:
        def begin() -> Callable[[], None]:
            finish = self.writer.begin_save(self.state, self.clients.memory, self.clients.changed)
            self.clients.saved()
            return finish

        self.saver.save(begin, wait=wait)
        self.saved_round = self.state.round


def _added(*stages: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each stage, added up."""
    total: dict[str, float] = {}
    for seconds in stages:
        for stage, value in seconds.items():
            total[stage] = total.get(stage, 0.0) + value
    return total


def _mean_loss(record: RoundRecord) -> float | None:
    """Return the mean loss of the clients that took a step, weighted as they count; None if none did."""
    losses = record.losses
    total = sum(record.weights[client] * loss for client, loss in losses.items())
    if len(losses) == len(record.weights) and record.groups is None:
        return total
    counted = sum(record.weights[client] for client in losses)
    return total / counted if counted else None

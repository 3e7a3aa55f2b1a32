"""The rounds of one run: played, evaluated, recorded and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedatlas.client.timing import Stopwatch
from fedatlas.data.federation import Federation
from fedatlas.errors import TrainingError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.types import ClientScore
from fedatlas.runs.writer import RunWriter
from fedatlas.seeds import Seeds
from fedatlas.training.clients import SavedClients
from fedatlas.training.groups import evaluate
from fedatlas.training.metrics import summarize
from fedatlas.training.progress import Progress
from fedatlas.training.rounds import Round, RoundRecord, initial_state, play, restored_state
from fedatlas.training.settings import TrainingPlan


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
    ) -> None:
        """Take work that may be done while clients train, once, as ``put_off``."""
        self.algorithm, self.federation, self.clients = algorithm, federation, clients
        self.plan, self.seeds, self.writer, self.progress = plan, seeds, writer, progress
        self.domains = {i: client.kind for i, client in enumerate(federation.clients)}
        self.about: list[dict[str, Any]] = [
            {"client": client.name, "domain": client.domain, "held_out": client.held_out} for client in federation
        ]
        self.has_personal = bool(clients.initial().personal)
        self.state = initial_state(algorithm, clients)
        self.saved_round = 0
        self.complete_round = 0
        """The last round whose records are all written."""
        self._unwritten = put_off
        self._watch = Stopwatch()

    def run(self, stop: Callable[[int], bool] | None = None) -> None:
        """Play the rounds that are left, or until ``stop`` returns true for a round's number."""
        self.writer.begin()
        self._restore()
        try:
            with self.progress:
                for found in self._rounds():
                    self._finish(found)
                    if stop is not None and stop(found.record.round):
                        break
        except (KeyboardInterrupt, TrainingError):
            # The clients' memory and the server's state belong together only at the end of a round.
            self._write_up()
            if self.complete_round == self.state.round > self.saved_round:
                self._save()
            raise
        self._write_up()
        if self.saved_round < self.state.round:
            self._save()

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
        checkpoint = None
        limit = self.plan.memory_bytes()
        self.clients.memory = self.writer.checkpoints.memories(limit, self.clients.place)
        if self.writer.checkpoints.exists():
            checkpoint = self.writer.checkpoints.load(self.clients.place, limit)
            self.writer.checkpoints.clear_leftovers()
            self.state = restored_state(self.algorithm, checkpoint.state)
            self.clients.memory = checkpoint.clients
            self.saved_round = self.complete_round = self.state.round
        self.writer.open(checkpoint)
        self.progress.start_from(self.state.round)

    def _finish(self, found: Round) -> None:
        """Evaluate a round, prepare its records and save the checkpoint if it is due."""
        self.state, record = found.state, found.record
        # The time since the last round was spent there and is counted by it.
        watch = Stopwatch()
        scores = self._evaluate() if self._is_evaluated(record.round) else []
        watch.lap("evaluation")
        summary, line = self._summary(record, scores)
        watch.lap("records")
        timing: dict[str, Any] = {
            "round": record.round,
            "train": sum(found.seconds.values()),
            "evaluate": watch.seconds["evaluation"],
        }
        # A checkpoint, which is written after this line, is counted in the next one.
        timing["stages"] = _added(found.seconds, watch.taken(), self._watch.taken())
        if record.client_seconds:
            timing["clients"] = record.client_seconds
        if fallbacks := self.clients.fallbacks():
            timing["fallbacks"] = fallbacks

        def write() -> None:
            self._write(record, scores, line)
            self.writer.write("timings.jsonl", [timing])
            self.complete_round = record.round

        self._unwritten = write
        self._watch = watch
        every = self.plan.checkpoint_every or self.plan.evaluate_every
        if record.round == self.plan.rounds or record.round % every == 0:
            self._write_up()
            watch.lap("records")
            self._save()
            watch.lap("checkpoints")
        self.progress.advance(record.round, summary)
        watch.lap("records")

    def _write_up(self) -> None:
        """Write the last round's records, unless they are: they are put off until clients train again."""
        write, self._unwritten = self._unwritten, None
        if write is not None:
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
        if record.sharing:
            line["groups"] = dict(record.sharing)
        summary: dict[str, Any] = {}
        if scores:
            line["tested"] = {
                "model": self._tested(),
                "data": "each client's test part",
                "clients": "all, held-out ones apart",
            }
            summary = summarize([s for s in scores if not clients[s.client].held_out], self.domains)
            line["evaluation"] = summary
            if held_out := summarize([s for s in scores if clients[s.client].held_out], self.domains):
                line["held_out"] = held_out
        if record.own:
            line["own"] = summarize(record.own, self.domains)
        return summary, {**line, **self.clients.remarks(record.round)}

    def _tested(self) -> str:
        """Return which model a client is tested with, in words."""
        whose = "the aggregated shared parameters" + (" of its group" if self.state.group_of is not None else "")
        return whose + (" with each client's own" if self.has_personal else "")

    def _write(self, record: RoundRecord, scores: list[ClientScore], line: dict[str, Any]) -> None:
        """Write a round's line and those of its clients."""
        own = {score.client: score for score in record.own}
        tested = {score.client: score for score in scores}
        lines = []
        for i in sorted(tested.keys() | record.weights.keys()):
            entry = {"round": record.round, **self.about[i], "trained": i in record.losses}
            if record.groups is not None:
                entry["group"] = record.groups[i]
            if i in record.weights:
                entry["weight"], entry["train_loss"] = record.weights[i], record.losses.get(i)
            if (score := tested.get(i)) is not None:
                entry["accuracy"], entry["loss"], entry["num_tested"] = score.accuracy, score.loss, score.num_examples
                entry |= score.others
            if i in own:
                entry["own_accuracy"], entry["own_loss"] = own[i].accuracy, own[i].loss
            lines.append(entry)
        self.writer.write("rounds.jsonl", [line])
        self.writer.write("clients.jsonl", lines)

    def _save(self) -> None:
        self.writer.save(self.state, self.clients.memory, self.clients.changed)
        self.clients.changed.clear()
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

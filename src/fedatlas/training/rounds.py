"""The life of one round, server side. Read this first.

1 choose who takes part        sampler
2 ask them, where needed       objective.survey -> server.gather
3 brief them                   server.note
4 train                        the clients decide where: loop, worker processes, other machines
5 weigh the uploads            weighting
6 turn changes into a change   server.apply
7 remember                     sampler.observe

``play`` yields one finished round after another: to log, to watch or to stop is the body of a ``for``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.client.timing import Stopwatch, client_seconds
from fedatlas.errors import TrainingError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.tensor_math import add, mean_change, weighted_sum
from fedatlas.parts.types import (
    Assignment,
    ClientInfo,
    ClientScore,
    Cohort,
    Memory,
    Roster,
    ServerState,
    Tensors,
    Upload,
)
from fedatlas.training.clients import Clients
from fedatlas.training.draws import Draws
from fedatlas.training.running_sum import Foreseen, RunningSum


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What happened in a round, as a run's folder keeps it."""

    round: int
    cohort: tuple[int, ...]
    """The clients that were drawn, by id."""
    weights: Mapping[int, float]
    """How much each upload counted; a client that is missing here did not answer."""
    losses: Mapping[int, float]
    """Mean training loss of each client that answered and took a step."""
    own: tuple[ClientScore, ...] = ()
    """How each client's own model did before the server averaged, where asked for."""
    client_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage of the clients' training, all clients together, where they measured them."""


class Round(NamedTuple):
    """One finished round."""

    state: ServerState
    """The server's state after the round."""
    record: RoundRecord
    assignments: list[Assignment]
    """What the server sent to each client of the round."""
    uploads: list[Upload]
    """The clients' uploads, by client id. The list is emptied when the next round begins."""
    surveys: dict[int, Memory]
    """The clients' replies before training, by client id. It is emptied when the next round begins."""
    seconds: Mapping[str, float]
    """Seconds by stage, server side."""


def initial_state(algorithm: Algorithm, clients: Clients) -> ServerState:
    """Return the server's state before the first round."""
    shared, buffers, _ = clients.initial()
    memory = {key: part.init(shared, clients.roster) for key, part in algorithm.server_parts()}
    for rule in algorithm.server:
        buffers = rule.initial_buffers(buffers, clients.roster)
    return ServerState(round=0, shared=shared, buffers=buffers, memory=memory)


def play(
    algorithm: Algorithm,
    clients: Clients,
    *,
    rounds: int,
    cohort_size: int | None = None,
    seed: int = 0,
    state: ServerState | None = None,
    test_own: Callable[[int], bool] | None = None,
    while_training: Callable[[], object] | None = None,
) -> Iterator[Round]:
    """Play rounds up to number ``rounds`` and yield each when it is finished.

    Args:
        cohort_size: clients in a round; None is all that may train.
        seed: of the sampling.
        state: where to go on; None is the beginning.
        test_own: whether clients also test their own models in a round, by its number.
        while_training: called once a round, when its clients have begun to train.

    >>> from fedatlas.algorithms import fedavg
    >>> from fedatlas.testing.tiny import tiny_clients
    >>> [len(round.uploads) for round in play(fedavg(), tiny_clients(fedavg()), rounds=2)]
    [6, 6]
    """
    state = state if state is not None else initial_state(algorithm, clients)
    if cohort_size is None:
        cohort_size = sum(not client.held_out for client in clients.roster)
    table = _Table(algorithm, clients, Draws(algorithm.sampler, clients.roster, cohort_size, seed), rounds)
    while state.round < rounds:
        number = state.round + 1
        found = table.play(state, test_own is not None and test_own(number), while_training)
        yield found
        state = found.state
        # An upload may be in memory that the next round needs.
        found.uploads.clear()
        found.surveys.clear()
        del found


class _Table:
    """Who plays, and by which rules."""

    def __init__(self, algorithm: Algorithm, clients: Clients, draws: Draws, rounds: int) -> None:
        self.algorithm, self.clients, self.draws, self.rounds = algorithm, clients, draws, rounds
        self.roster: Roster = clients.roster
        self.sampler = f"sampler/{algorithm.sampler.name}"
        self.foreseeable = all(link.foreseeable for link in algorithm.weighting)

    def play(self, state: ServerState, test_own: bool, while_training: Callable[[], object] | None) -> Round:
        """Play the next round."""
        watch, number, memory = Stopwatch(), state.round + 1, dict(state.memory)
        drawn, memory[self.sampler] = self.draws.draw(number, memory[self.sampler])
        times = Counter(drawn)
        chosen = [self.roster[i] for i in sorted(times)]
        watch.lap("sampling")
        surveys = self._survey(state, memory, chosen)
        if self.algorithm.surveys:
            watch.lap("surveys")

        cohort = Cohort(
            round=number,
            rounds=self.rounds,
            roster=self.roster,
            uploads=(),
            draws=times,
            shared=state.shared,
            lr=self.algorithm.optimizer.lr_at(number, self.rounds),
        )
        assignments = self._assignments(state, memory, chosen, test_own)
        arriving = self.clients.train(assignments)
        watch.lap("training")
        if while_training is not None:
            while_training()
        watch.lap("records")
        self._look_ahead(number, memory)
        running = RunningSum((lambda: self._foresee(chosen, cohort, memory)) if self.foreseeable else None)
        uploads: list[Upload] = []
        for upload in arriving:
            running.add(upload.client, upload.change)
            uploads.append(upload)
        uploads.sort(key=lambda upload: upload.client)
        watch.lap("training")
        if not uploads:
            record = RoundRecord(round=number, cohort=tuple(sorted(drawn)), weights={}, losses={})
            after = replace(state, round=number, memory=memory)
        else:
            cohort = replace(cohort, uploads=uploads)
            weights, weighed = running.weights(uploads) or _weigh(self.algorithm, cohort, memory)
            memory |= weighed
            watch.lap("weighting")
            change = running.total(uploads, weights) or mean_change(uploads, weights)
            after = self._apply(state, cohort, weights, change, memory)
            record = _record(cohort, drawn, weights)
        watch.lap("aggregation")
        self.clients.commit()
        watch.lap("memory")
        return Round(after, record, assignments, uploads, surveys, watch.seconds)

    def _assignments(
        self, state: ServerState, memory: Memory, chosen: Sequence[ClientInfo], test_own: bool = False
    ) -> list[Assignment]:
        return [
            Assignment(
                round=state.round + 1,
                rounds=self.rounds,
                client=client.id,
                shared=state.shared,
                buffers=state.buffers,
                notes=_notes(self.algorithm, memory, client),
                test_own=test_own,
            )
            for client in chosen
        ]

    def _survey(self, state: ServerState, memory: Memory, chosen: Sequence[ClientInfo]) -> dict[int, Memory]:
        """Ask the clients before they train, and let the server's rules gather their replies."""
        if not self.algorithm.surveys:
            return {}
        replies = dict(sorted(self.clients.survey(self._assignments(state, memory, chosen)).items()))
        for rule in self.algorithm.server:
            own = {client: notes[rule.name] for client, notes in replies.items() if rule.name in notes}
            if own:
                key = f"server/{rule.name}"
                memory[key] = rule.gather(memory[key], own, self.roster)
        return replies

    def _look_ahead(self, number: int, memory: Memory) -> None:
        """Draw the next round's clients while this one's train, and let them be made ready."""
        if number < self.rounds:
            coming = self.draws.look_ahead(number + 1, memory[self.sampler])
            if coming is not None:
                self.clients.prepare(number + 1, sorted(set(coming)))

    def _foresee(self, chosen: Sequence[ClientInfo], cohort: Cohort, memory: Memory) -> Foreseen:
        """Return the weights that the chosen clients will have if all answer."""
        expected = [
            Upload(client=client.id, num_examples=client.num_examples, num_steps=0, change={}, buffers={})
            for client in chosen
        ]
        weighed = _weigh(self.algorithm, replace(cohort, uploads=expected), memory)
        return Foreseen({client.id: client.num_examples for client in chosen}, *weighed)

    def _apply(
        self, state: ServerState, cohort: Cohort, weights: Tensor, change: Tensors, memory: Memory
    ) -> ServerState:
        """Return the state after the server's rules have seen the weighted change."""
        for rule in self.algorithm.server:
            key = f"server/{rule.name}"
            change, memory[key] = rule.apply(change, memory[key], cohort)
        # As changes, so that a buffer that no client changed keeps its bits.
        moved = [add(upload.buffers, state.buffers, -1.0) for upload in cohort.uploads] if state.buffers else []
        buffers = add(state.buffers, weighted_sum(moved, weights)) if moved else {}
        memory[self.sampler] = self.algorithm.sampler.observe(memory[self.sampler], cohort)
        return ServerState(round=cohort.round, shared=add(state.shared, change), buffers=buffers, memory=memory)


def _record(cohort: Cohort, drawn: Sequence[int], weights: Tensor) -> RoundRecord:
    uploads = cohort.uploads
    return RoundRecord(
        round=cohort.round,
        cohort=tuple(sorted(drawn)),
        weights={u.client: w for u, w in zip(uploads, weights.tolist(), strict=True)},
        losses={u.client: u.metrics["loss"] for u in uploads if u.num_steps},
        own=tuple(u.score for u in uploads if u.score is not None),
        client_seconds=client_seconds(uploads),
    )


def _weigh(algorithm: Algorithm, cohort: Cohort, memory: Memory) -> tuple[Tensor, Memory]:
    """Return the weight of each upload, with sum 1, and the weightings' new memory."""
    weights = torch.ones(len(cohort.uploads), dtype=torch.float64)
    after: Memory = {}
    for link in algorithm.weighting:
        key = f"weighting/{link.name}"
        answer = link.weigh(weights, cohort, memory[key])
        if fault := _fault(answer, len(weights)):
            raise _unsound(f"{type(link).__name__} {fault}", cohort)
        weights, after[key] = answer
    total = float(weights.sum())  # not finite if one of them is not
    if not 0 < total < math.inf:
        raise _unsound(f"weights must be finite and not all zero, got {weights.tolist()}.", cohort)
    return weights / total, after


def _fault(answer: object, count: int) -> str | None:
    """Return the fault in the result of a weighting, or None."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Tensor):
        return f"returned {answer!r:.80}. Let weigh() end with `return weights, memory`, the weights as a tensor."
    if answer[0].shape != (count,):
        return f"returned weights of shape {tuple(answer[0].shape)}; give one to each of the {count} uploads, in order."
    if bool((answer[0] < 0).any()):
        return f"returned {answer[0].tolist()}; weights must not be negative."
    return None


def _unsound(message: str, cohort: Cohort) -> TrainingError:
    names = ", ".join(cohort.roster[upload.client].name for upload in cohort.uploads)
    return TrainingError(message, client=names, round=cohort.round, stage="weighting", code="bad-weights")


def _notes(algorithm: Algorithm, memory: Memory, client: ClientInfo) -> Memory:
    notes = ((rule.name, rule.note(memory[f"server/{rule.name}"], client)) for rule in algorithm.server)
    return {name: note for name, note in notes if note}

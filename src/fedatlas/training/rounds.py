"""The life of one round, server side. Read this first.

1 choose who takes part        sampler
2 ask them, where needed       objective.survey -> server.gather
3 brief them                   server.note
4 train                        the transport decides where: loop, worker processes, other machines
5 weigh the answers            weighting
6 turn changes into a change   server.apply
7 remember                     sampler.observe
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

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
from fedatlas.training.draws import Draws
from fedatlas.training.meanwhile import Foreseen, Meanwhile


class Transport(Protocol):
    """Where clients run. What a client remembers stays with the transport."""

    meanwhile: Meanwhile
    """What may be done while clients train; set for each round."""

    def survey(self, assignments: Sequence[Assignment]) -> Mapping[int, Memory]:
        """Return what clients answer before training, by client id."""
        ...

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Upload]:
        """Return the uploads of the clients that answered."""
        ...

    def evaluate(self, shared: Tensors, buffers: Tensors, clients: Sequence[int]) -> Sequence[ClientScore]:
        """Return how the shared model, with each client's own parameters, does on the clients' test parts."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What happened in a round."""

    round: int
    cohort: tuple[int, ...]
    """The clients that were drawn, by id."""
    weights: Mapping[int, float]
    """How much each answer counted; a client missing here did not answer."""
    losses: Mapping[int, float]
    """Mean training loss of each client that answered and took a step."""
    own: tuple[ClientScore, ...] = ()
    """How each client's own model did before the server averaged, where asked for."""
    client_seconds: Mapping[str, float] = field(default_factory=dict)
    """What took how long in the clients' training, all clients together, where they measured it."""


def initial_state(algorithm: Algorithm, shared: Tensors, buffers: Tensors, roster: Roster) -> ServerState:
    """Return the server's state before the first round."""
    memory = {key: part.init(shared, roster) for key, part in algorithm.server_parts()}
    for rule in algorithm.server:
        buffers = rule.initial_buffers(buffers, roster)
    return ServerState(round=0, shared=shared, buffers=buffers, memory=memory)


def play_round(
    algorithm: Algorithm,
    state: ServerState,
    roster: Roster,
    transport: Transport,
    draws: Draws,
    *,
    rounds: int,
    test_own: bool = False,
    watch: Stopwatch | None = None,
    put_off: Callable[[], object] | None = None,
) -> tuple[ServerState, RoundRecord]:
    """Play the next round and return the new state and what happened.

    ``test_own`` scores clients' own models too; ``watch`` is told when a stage ends. ``put_off`` is done while clients
    train, or when they have.
    """
    watch = watch or Stopwatch()
    number = state.round + 1
    memory = dict(state.memory)

    sampler = f"sampler/{algorithm.sampler.name}"
    drawn, memory[sampler] = draws.draw(number, memory[sampler])
    times = Counter(drawn)
    chosen = [roster[i] for i in sorted(times)]
    watch.lap("sampling")

    def assignments() -> list[Assignment]:
        return [
            Assignment(
                round=number,
                rounds=rounds,
                client=client.id,
                shared=state.shared,
                buffers=state.buffers,
                notes=_notes(algorithm, memory, client),
                test_own=test_own,
            )
            for client in chosen
        ]

    if algorithm.surveys:
        answers = transport.survey(assignments())
        for rule in algorithm.server:
            said = {client: notes[rule.name] for client, notes in sorted(answers.items()) if rule.name in notes}
            if said:
                memory[f"server/{rule.name}"] = rule.gather(memory[f"server/{rule.name}"], said, roster)
        watch.lap("surveys")

    lr = algorithm.optimizer.lr_at(number, rounds)

    def cohort_of(uploads: Sequence[Upload]) -> Cohort:
        return Cohort(
            round=number, rounds=rounds, roster=roster, uploads=uploads, draws=times, shared=state.shared, lr=lr
        )

    def foresee() -> Foreseen:
        expected = [
            Upload(client=client.id, num_examples=client.num_examples, num_steps=0, change={}, buffers={})
            for client in chosen
        ]
        return Foreseen(
            {client.id: client.num_examples for client in chosen}, *_weigh(algorithm, cohort_of(expected), memory)
        )

    def catch_up() -> None:
        if put_off is not None:
            put_off()
        if number < rounds and (coming := draws.look_ahead(number + 1, memory[sampler])) is not None:
            meanwhile.upcoming = number + 1, tuple(sorted(set(coming)))

    foreseeable = all(link.foreseeable for link in algorithm.weighting)
    meanwhile = transport.meanwhile = Meanwhile(foresee if foreseeable else None, catch_up)
    uploads = sorted(transport.train(assignments()), key=lambda upload: upload.client)
    watch.lap("training")
    meanwhile.catch_up()
    watch.lap("records")
    if not uploads:
        meanwhile.let_go()
        skipped = RoundRecord(round=number, cohort=tuple(sorted(drawn)), weights={}, losses={})
        return replace(state, round=number, memory=memory), skipped

    cohort = cohort_of(uploads)
    weights, weighed = meanwhile.weighed(uploads) or _weigh(algorithm, cohort, memory)
    memory |= weighed
    watch.lap("weighting")

    change = meanwhile.mean(uploads, weights) or mean_change(uploads, weights)
    meanwhile.let_go()
    for rule in algorithm.server:
        key = f"server/{rule.name}"
        change, memory[key] = rule.apply(change, memory[key], cohort)
    # As changes, so that a buffer that nobody changed keeps its bits.
    moved = [add(upload.buffers, state.buffers, -1.0) for upload in uploads] if state.buffers else []
    buffers = add(state.buffers, weighted_sum(moved, weights)) if moved else {}
    memory[sampler] = algorithm.sampler.observe(memory[sampler], cohort)

    record = RoundRecord(
        round=number,
        cohort=tuple(sorted(drawn)),
        weights={u.client: w for u, w in zip(uploads, weights.tolist(), strict=True)},
        losses={u.client: u.metrics["loss"] for u in uploads if u.num_steps},
        own=tuple(u.score for u in uploads if u.score is not None),
        client_seconds=client_seconds(uploads),
    )
    shared = add(state.shared, change)
    watch.lap("aggregation")
    return ServerState(round=number, shared=shared, buffers=buffers, memory=memory), record


def _weigh(algorithm: Algorithm, cohort: Cohort, memory: Memory) -> tuple[Tensor, Memory]:
    """Return what each upload counts, all together 1, and what the weightings remember then."""
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
    """Return what is wrong with what a weighting returned."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Tensor):
        return f"returned {answer!r:.80}. Let weigh() end with `return weights, memory`, the weights as a tensor."
    if answer[0].shape != (count,):
        return f"returned weights of shape {tuple(answer[0].shape)}; give one to each of the {count} uploads, in order."
    if bool((answer[0] < 0).any()):
        return f"returned {answer[0].tolist()}; weights must not be negative."
    return None


def _unsound(message: str, cohort: Cohort) -> TrainingError:
    names = ", ".join(cohort.roster[upload.client].name for upload in cohort.uploads)
    return TrainingError(message, client=names, round=cohort.round, stage="weighting")


def _notes(algorithm: Algorithm, memory: Memory, client: ClientInfo) -> Memory:
    notes = ((rule.name, rule.note(memory[f"server/{rule.name}"], client)) for rule in algorithm.server)
    return {name: note for name, note in notes if note}

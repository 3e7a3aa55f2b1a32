"""The life of one round, server side. Read this first.

1 choose who takes part        sampler
2 ask them, where needed       objective.survey -> server.gather
3 brief them                   server.note
4 train                        the clients decide where: loop, worker processes, other machines
5 weigh the uploads            weighting
6 make one change of them      combination; without one, the weighted mean
7 turn it into the applied one server.apply
8 remember                     sampler.observe

``play`` yields one finished round after another: to log, to watch or to stop is the body of a ``for``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from fedatlas.client.timing import Stopwatch, client_seconds
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sharing import Plan
from fedatlas.parts.types import (
    Assignment,
    ClientInfo,
    ClientScore,
    Cohort,
    GroupState,
    Memory,
    Roster,
    ServerState,
    Tensors,
    Upload,
)
from fedatlas.seeds import derive
from fedatlas.training.clients import Clients
from fedatlas.training.draws import Draws
from fedatlas.training.groups import Groups
from fedatlas.training.pools import GroupRosters, Pools


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What happened in a round, as a run's folder keeps it."""

    round: int
    cohort: tuple[int, ...]
    """The clients that were drawn, by id."""
    weights: Mapping[int, float]
    """How much each upload counted, in the first turn; a client that is missing here did not answer."""
    losses: Mapping[int, float]
    """Mean training loss of each client that answered and took a step."""
    groups: tuple[int, ...] | None = None
    """The group in which each client trains in this round's last turn, -1 for none; None where there are no groups."""
    combination: Mapping[str, Any] = field(default_factory=dict)
    """What the parts say that made one change of all, in the first turn; where there are groups, by group."""
    sharing: Mapping[str, Any] = field(default_factory=dict)
    """What the sharing says about the groups after the round."""
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
    """What the server sent to each client of the round, in the last turn if there are several."""
    uploads: list[Upload]
    """The clients' uploads of that turn, by client id. The list is emptied when the next round begins."""
    surveys: dict[int, Memory]
    """The clients' replies before that training, by client id. It is emptied when the next round begins."""
    seconds: Mapping[str, float]
    """Seconds by stage, server side."""


def initial_state(algorithm: Algorithm, clients: Clients) -> ServerState:
    """Return the server's state before the first round."""
    shared, buffers, _, grouped = clients.initial()
    roster = clients.roster
    apart = frozenset() if algorithm.sharing.keeps_common else grouped
    common = {name: tensor for name, tensor in shared.items() if name not in apart} if apart else shared
    memory = {key: part.init(common, roster) for key, part in algorithm.server_parts()}
    state = ServerState(round=0, shared=common, buffers=_filled(algorithm, buffers, roster), memory=memory)
    keeps = algorithm.sharing.keeps_common
    serving = algorithm.sharing.serving(roster) if keeps else None
    if not grouped or (keeps and serving is None):
        return state
    group_of, rosters = algorithm.sharing.place(roster), GroupRosters(roster)
    groups = []
    for group in range(algorithm.sharing.num_groups(group_of)):
        own = algorithm.sharing.initial({name: shared[name] for name in shared if name in grouped}, group)
        seen = rosters.of(group_of, group)
        filled = _filled(algorithm, buffers, seen)
        groups.append(
            GroupState(
                shared=own,
                buffers={name: buffer for name, buffer in filled.items() if name in grouped},
                memory={key: part.init(own, seen) for key, part in algorithm.group_parts()},
            )
        )
    if serving is not None:
        return replace(state, groups=tuple(groups), group_of=serving)
    rest = {name: buffer for name, buffer in state.buffers.items() if name not in grouped}
    return replace(state, buffers=rest, groups=tuple(groups), group_of=group_of)


def _filled(algorithm: Algorithm, buffers: Tensors, roster: Roster) -> Tensors:
    """Return the buffers to begin with, after the server's rules have filled theirs."""
    for rule in algorithm.server:
        buffers = rule.initial_buffers(buffers, roster)
    return buffers


def restored_state(algorithm: Algorithm, found: ServerState) -> ServerState:
    """Return the state that a file held, with the memory of parts that remembered nothing, which a file leaves out."""
    nothing: Memory = {key: {} for key, _ in algorithm.server_parts()}
    own: Memory = {key: {} for key, _ in algorithm.group_parts()}
    groups = tuple(replace(group, memory=own | group.memory) for group in found.groups)
    return replace(found, memory=nothing | found.memory, groups=groups)


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


@dataclass(frozen=True)
class _Task:
    """What a turn of a round is for."""

    turn: int
    plan: Plan
    chosen: Sequence[ClientInfo]
    test_own: bool


class _Numbers(NamedTuple):
    """What the uploads of a turn say beside their tensors."""

    losses: Mapping[int, float]
    own: tuple[ClientScore, ...]
    seconds: Mapping[str, float]
    combination: Mapping[str, Any]


class _Turn(NamedTuple):
    """One turn of a round: all rounds but those of a trial have one."""

    state: ServerState
    plan: Plan
    group_of: Tensor | None
    assignments: list[Assignment]
    uploads: list[Upload]
    surveys: dict[int, Memory]
    weights: Mapping[int, float]
    numbers: _Numbers


class _Table:
    """Who plays, and by which rules."""

    def __init__(self, algorithm: Algorithm, clients: Clients, draws: Draws, rounds: int) -> None:
        self.algorithm, self.clients, self.draws, self.rounds = algorithm, clients, draws, rounds
        self.roster: Roster = clients.roster
        self.sampler = f"sampler/{algorithm.sampler.name}"
        self.groups = Groups(algorithm, clients)

    def play(self, state: ServerState, test_own: bool, while_training: Callable[[], object] | None) -> Round:
        """Play the next round."""
        watch, number = Stopwatch(), state.round + 1
        plans = self.groups.plan(state, number, self.rounds)
        drawn, sampling = self.draws.draw(number, state.memory[self.sampler], plans[0].drawn_from)
        times = Counter(drawn)
        watch.lap("sampling")
        cohort = Cohort(
            round=number,
            rounds=self.rounds,
            roster=self.roster,
            uploads=(),
            draws=times,
            shared=state.shared,
            lr=self.algorithm.optimizer.lr_at(number, self.rounds),
            size=self.draws.count,
            seed=derive(self.draws.seed, "server", number),
        )
        turns: list[_Turn] = []
        tested: set[int] = set()
        for i, plan in enumerate(plans):
            taking = [self.roster[c] for c in sorted(times) if plan.has(c)]
            if not taking and turns:
                continue
            if turns:
                # An upload may be in memory that the next turn needs.
                turns[-1].uploads.clear()
                turns[-1].surveys.clear()
            meanwhile = None if turns else partial(self._meanwhile, while_training, number, sampling, watch)
            # A client tests its model once a round, in the first turn that it takes.
            first = tested.isdisjoint(client.id for client in taking)
            tested.update(client.id for client in taking)
            turns.append(self._turn(state, cohort, _Task(i, plan, taking, test_own and first), meanwhile, watch))
            state = turns[-1].state
            if not i and (turns[0].uploads or self.algorithm.private):
                sampling = self.algorithm.sampler.observe(sampling, replace(cohort, uploads=turns[0].uploads))
        self.clients.commit()
        watch.lap("memory")
        after = replace(state, round=number, memory={**state.memory, self.sampler: sampling})
        if plans[-1].compares:
            after = self.groups.compare(after, plans[-1], self.rounds)
            watch.lap("losses")
        remarks = self.groups.remarks(after)
        record = _record(number, turns, drawn, {**remarks, "compared": True} if plans[-1].compares else remarks)
        last = turns[-1]
        return Round(after, record, last.assignments, last.uploads, last.surveys, watch.seconds)

    def _turn(
        self, state: ServerState, cohort: Cohort, task: _Task, meanwhile: Callable[[], None] | None, watch: Stopwatch
    ) -> _Turn:
        """Let clients train once, and return what the server makes of it."""
        plan, chosen = task.plan, task.chosen
        state = self.groups.begin(state, plan, chosen)
        if self.algorithm.sharing.asks:
            watch.lap("losses")
        if task.turn:
            cohort = replace(cohort, seed=derive(self.draws.seed, "server", cohort.round, task.turn))
        pools = self.groups.pools(state, plan, replace(cohort, shared=state.shared), chosen)
        surveys = self._survey(pools, task)
        if self.algorithm.surveys:
            watch.lap("surveys")
        assignments = self._assignments(pools, task)
        arriving = self.clients.train(assignments) if assignments else iter(())
        watch.lap("training")
        if meanwhile is not None:
            meanwhile()
        uploads: list[Upload] = []
        for upload in arriving:
            pools.take(upload)
            uploads.append(upload)
        uploads.sort(key=lambda upload: upload.client)
        watch.lap("training")
        weights: Mapping[int, float] = {}
        after = replace(state, memory=self.groups.remembered(state, plan, pools))
        if uploads or self.algorithm.private:
            weights = pools.weights()
            watch.lap("weighting")
            after = self.groups.applied(after, plan, pools)
            if not self.clients.takes(state, after, uploads):
                after, weights, uploads = state, {}, []
        watch.lap("aggregation")
        numbers = _Numbers(
            losses={u.client: u.metrics["loss"] for u in uploads if u.num_steps},
            own=tuple(u.score for u in uploads if u.score is not None),
            seconds=client_seconds(uploads),
            combination=pools.remarks(),
        )
        return _Turn(after, plan, pools.state.group_of, assignments, uploads, surveys, weights, numbers)

    def _assignments(self, pools: Pools, task: _Task) -> list[Assignment]:
        plan = task.plan
        return [
            Assignment(
                round=pools.state.round + 1,
                rounds=self.rounds,
                turn=task.turn,
                client=client.id,
                shared=shared,
                buffers=buffers,
                notes=pools.notes(client),
                test_own=task.test_own,
                holds_back=plan.holds_back,
                branch=plan.branch,
                restarts=client.id in plan.restarts,
                forgets=plan.forgets,
            )
            for client in task.chosen
            for shared, buffers in (pools.model(client.id),)
        ]

    def _survey(self, pools: Pools, task: _Task) -> dict[int, Memory]:
        """Ask the clients before they train, and let the server's rules gather their replies."""
        if not self.algorithm.surveys or not task.chosen:
            return {}
        assignments = self._assignments(pools, replace(task, test_own=False))
        replies = dict(sorted(self.clients.survey(assignments).items()))
        pools.gather(replies)
        return replies

    def _meanwhile(self, write: Callable[[], object] | None, number: int, sampling: Tensors, watch: Stopwatch) -> None:
        """Do what can be done while clients train."""
        if write is not None:
            write()
        watch.lap("records")
        self._look_ahead(number, sampling)

    def _look_ahead(self, number: int, sampling: Tensors) -> None:
        """Draw the next round's clients while this one's train, and let them be made ready."""
        if number < self.rounds and not self.groups.plans:
            coming = self.draws.look_ahead(number + 1, sampling)
            if coming is not None:
                self.clients.prepare(number + 1, sorted(set(coming)))


def _record(number: int, turns: Sequence[_Turn], drawn: Sequence[int], remarks: Mapping[str, Any]) -> RoundRecord:
    """Return the record of a round; a client's weight and loss are those of the first turn that it takes."""
    first, last = turns[0], turns[-1]
    seconds: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    weights: dict[int, float] = {}
    losses: dict[int, float] = {}
    own: list[ClientScore] = []
    for turn in turns:
        seconds.update(turn.numbers.seconds)
        trained[turn.plan.model] += len(turn.weights)
        weights = {**turn.weights, **weights}
        losses = {**turn.numbers.losses, **losses}
        own += turn.numbers.own
    return RoundRecord(
        round=number,
        cohort=tuple(sorted(drawn)),
        groups=None if last.group_of is None else tuple(last.group_of.tolist()),
        sharing={**remarks, "trained": dict(trained)} if len(turns) > 1 else remarks,
        weights=dict(sorted(weights.items())),
        losses=dict(sorted(losses.items())),
        own=tuple(sorted(own, key=lambda score: score.client)),
        client_seconds=dict(seconds),
        combination=first.numbers.combination,
    )

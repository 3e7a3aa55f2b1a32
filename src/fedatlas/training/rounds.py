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

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
    """How much each upload counted; a client that is missing here did not answer."""
    losses: Mapping[int, float]
    """Mean training loss of each client that answered and took a step."""
    groups: tuple[int, ...] | None = None
    """The group in which each client trains in this round, -1 for none; None where it trains what is common to all."""
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
    """What the server sent to each client of the round."""
    uploads: list[Upload]
    """The clients' uploads, by client id. The list is emptied when the next round begins."""
    surveys: dict[int, Memory]
    """The clients' replies before training, by client id. It is emptied when the next round begins."""
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
    if not grouped or algorithm.sharing.keeps_common:
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
        plan = self.groups.plan(state, number, self.rounds)
        drawn, sampling = self.draws.draw(number, state.memory[self.sampler], plan.drawn_from)
        times = Counter(drawn)
        chosen = [self.roster[i] for i in sorted(times)]
        watch.lap("sampling")
        state = self.groups.begin(state, plan, chosen)
        if self.algorithm.sharing.asks:
            watch.lap("losses")
        cohort = Cohort(
            round=number,
            rounds=self.rounds,
            roster=self.roster,
            uploads=(),
            draws=times,
            shared=state.shared,
            lr=self.algorithm.optimizer.lr_at(number, self.rounds),
        )
        pools = self.groups.pools(state, plan, cohort, chosen)
        surveys = self._survey(pools, chosen, plan)
        if self.algorithm.surveys:
            watch.lap("surveys")

        assignments = self._assignments(pools, chosen, plan, test_own)
        arriving = self.clients.train(assignments)
        watch.lap("training")
        if while_training is not None:
            while_training()
        watch.lap("records")
        self._look_ahead(number, sampling)
        uploads: list[Upload] = []
        for upload in arriving:
            pools.take(upload)
            uploads.append(upload)
        uploads.sort(key=lambda upload: upload.client)
        watch.lap("training")
        weights: Mapping[int, float] = {}
        remembered = self.groups.remembered(state, plan, pools)
        after = replace(state, round=number, memory={**remembered, self.sampler: sampling})
        if uploads:
            weights = pools.weights()
            watch.lap("weighting")
            sampling = self.algorithm.sampler.observe(sampling, replace(cohort, uploads=uploads))
            after = self.groups.applied(after, plan, pools)
            after = replace(after, memory={**after.memory, self.sampler: sampling})
        watch.lap("aggregation")
        self.clients.commit()
        watch.lap("memory")
        if plan.compares:
            after = self.groups.compare(after, plan, self.rounds)
            watch.lap("losses")
        record = _record(pools, drawn, uploads, weights, self.groups.remarks(after))
        return Round(after, record, assignments, uploads, surveys, watch.seconds)

    def _assignments(
        self, pools: Pools, chosen: Sequence[ClientInfo], plan: Plan, test_own: bool = False
    ) -> list[Assignment]:
        branch = plan.branch and not plan.common
        return [
            Assignment(
                round=pools.state.round + 1,
                rounds=self.rounds,
                client=client.id,
                shared=shared,
                buffers=buffers,
                notes=pools.notes(client),
                test_own=test_own,
                holds_back=plan.holds_back,
                branch=branch,
                restarts=client.id in plan.restarts,
            )
            for client in chosen
            for shared, buffers in (pools.model(client.id),)
        ]

    def _survey(self, pools: Pools, chosen: Sequence[ClientInfo], plan: Plan) -> dict[int, Memory]:
        """Ask the clients before they train, and let the server's rules gather their replies."""
        if not self.algorithm.surveys:
            return {}
        replies = dict(sorted(self.clients.survey(self._assignments(pools, chosen, plan)).items()))
        pools.gather(replies)
        return replies

    def _look_ahead(self, number: int, sampling: Tensors) -> None:
        """Draw the next round's clients while this one's train, and let them be made ready."""
        if number < self.rounds and not self.groups.plans:
            coming = self.draws.look_ahead(number + 1, sampling)
            if coming is not None:
                self.clients.prepare(number + 1, sorted(set(coming)))


def _record(
    pools: Pools,
    drawn: Sequence[int],
    uploads: Sequence[Upload],
    weights: Mapping[int, float],
    remarks: Mapping[str, Any],
) -> RoundRecord:
    group_of = pools.state.group_of
    return RoundRecord(
        round=pools.state.round + 1,
        cohort=tuple(sorted(drawn)),
        groups=None if group_of is None else tuple(group_of.tolist()),
        sharing=remarks,
        weights=weights,
        losses={u.client: u.metrics["loss"] for u in uploads if u.num_steps},
        own=tuple(u.score for u in uploads if u.score is not None),
        client_seconds=client_seconds(uploads),
    )

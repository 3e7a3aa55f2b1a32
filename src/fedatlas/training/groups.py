"""The groups of clients that share a model, from round to round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sharing import COMMON, PLAIN, One, Plan, Sharing
from fedatlas.parts.tensor_math import without
from fedatlas.parts.types import (
    GROUP,
    RIVAL,
    Candidate,
    ClientInfo,
    ClientLosses,
    ClientScore,
    Cohort,
    GroupState,
    Memory,
    ServerState,
)
from fedatlas.training.clients import Clients
from fedatlas.training.pools import GroupRosters, Pools


class Groups:
    """What the sharing of an algorithm makes of the server's state."""

    def __init__(self, algorithm: Algorithm, clients: Clients) -> None:
        self.algorithm, self.clients, self.sharing = algorithm, clients, algorithm.sharing
        self.key = f"sharing/{algorithm.sharing.name}"
        self.plans = type(algorithm.sharing).plan is not Sharing.plan
        """Whether a round's plan depends on the rounds before it."""
        self._rosters = GroupRosters(clients.roster)
        self._grouped = clients.initial().grouped if self.plans else frozenset[str]()

    def plan(self, state: ServerState, number: int, rounds: int) -> Sequence[Plan]:
        """Return what a round trains, turn by turn."""
        if not self.plans:
            return (PLAIN,)
        return self.sharing.plan(state.memory[self.key], self.clients.roster, number, rounds)

    def begin(self, state: ServerState, plan: Plan, chosen: Sequence[ClientInfo]) -> ServerState:
        """Return the state with the groups that begin in this turn, and with the clients' choice of a group."""
        if plan.begins:
            groups = list(state.groups)
            groups += [self._branched(state)] * (max(plan.begins) + 1 - len(groups))
            for group in plan.begins:
                groups[group] = self._branched(state)
            state = replace(state, groups=tuple(groups))
        if self.sharing.asks and state.group_of is not None:
            ids = [client.id for client in chosen]
            state = replace(state, group_of=choose_groups(self.sharing, self.clients, state, ids, state.round + 1))
        return state

    def pools(self, state: ServerState, plan: Plan, cohort: Cohort, chosen: Sequence[ClientInfo]) -> Pools:
        """Return the pools of a turn."""
        if plan.common:
            state = replace(state, groups=(), group_of=None)
            if plan.group_of is not None:
                draws = {client.id: cohort.draws[client.id] for client in chosen}
                cohort = replace(cohort, roster=self._rosters.of(plan.group_of, COMMON), draws=draws)
        elif plan.group_of is not None:
            state = replace(
                state,
                shared=without(state.shared, self._grouped),
                buffers=without(state.buffers, self._grouped),
                memory={key: without(own, self._grouped) for key, own in state.memory.items()},
                group_of=plan.group_of,
            )
        return Pools(self.algorithm, state, cohort, chosen, self._rosters)

    def applied(self, state: ServerState, plan: Plan, pools: Pools) -> ServerState:
        """Return the state after the server's rules have seen the weighted changes of a turn."""
        common, groups = pools.apply()
        if plan.common:
            return replace(state, shared=common.shared, buffers=common.buffers, memory=common.memory)
        if plan.beside:
            state = replace(state, groups=groups)
        elif plan.group_of is not None:
            # The common model keeps the parameters that the groups trained for themselves.
            memory = {key: {**state.memory[key], **own} for key, own in common.memory.items()}
            shared, buffers = {**state.shared, **common.shared}, {**state.buffers, **common.buffers}
            state = replace(state, shared=shared, buffers=buffers, memory=memory, groups=groups)
        else:
            state = replace(state, shared=common.shared, buffers=common.buffers, memory=common.memory, groups=groups)
        return self._regrouped(state, plan, pools) if groups else state

    def remembered(self, state: ServerState, plan: Plan, pools: Pools) -> Memory:
        """Return what the server remembers for all clients after the surveys of a turn."""
        if plan.beside:
            return state.memory
        if plan.common or plan.group_of is None:
            return pools.memory
        return {key: {**state.memory[key], **own} for key, own in pools.memory.items()}

    def compare(self, state: ServerState, plan: Plan, rounds: int) -> ServerState:
        """Compare the rival with the groups' models on held-back examples, and let the sharing decide who leaves."""
        if plan.group_of is None:
            return state
        losses: dict[int, Mapping[int, ClientLosses]] = {}
        *groups, _ = state.groups
        rival = Candidate(*state.model(len(groups)), branch=RIVAL)
        for group in range(len(groups)):
            own = (plan.group_of == group).nonzero()[:, 0].tolist()
            members = [client for client in own if not self.clients.roster[client].held_out]
            candidates = [rival, Candidate(*state.model(group), branch=plan.branch)]
            if members:
                losses[group] = self.clients.losses(candidates, members, round=state.round, held_back=True)
        before = state.memory[self.key]
        serving, memory = self.sharing.decide(before, self.clients.roster, losses, state.round, rounds)
        state = replace(state, memory={**state.memory, self.key: memory})
        return state if serving is None else replace(state, groups=tuple(groups), group_of=serving)

    def remarks(self, state: ServerState) -> Mapping[str, Any]:
        """Return what a round's record shows of the groups."""
        if type(self.sharing) is One:
            return {}
        return {"count": len(state.groups), **self.sharing.remarks(state.memory.get(self.key, {}))}

    def _branched(self, state: ServerState) -> GroupState:
        """Return what a group shares and remembers that begins from the common model."""
        others = state.shared.keys() - self._grouped
        memory = {key: without(state.memory[key], others) for key, _ in self.algorithm.group_parts()}
        return GroupState(
            shared={name: tensor for name, tensor in state.shared.items() if name in self._grouped},
            buffers={name: tensor for name, tensor in state.buffers.items() if name in self._grouped},
            memory=memory,
        )

    def _regrouped(self, state: ServerState, plan: Plan, pools: Pools) -> ServerState:
        """Return the state with the groups that the sharing makes after a round."""
        trained = plan.group_of if plan.group_of is not None else state.group_of
        if trained is None:
            return state
        cohorts = {group: pool.cohort for group, pool in pools.groups.items() if pool.uploads}
        found = self.sharing.observe(state.memory.get(self.key, {}), trained, cohorts)
        groups = state.groups
        if found.parents is not None:
            groups = tuple(groups[parent] for parent in found.parents)
        serving = state.group_of if plan.group_of is not None else found.group_of
        memory: Memory = {**state.memory, self.key: found.memory}
        return replace(state, groups=groups, group_of=serving, memory=memory)


def choose_groups(sharing: Sharing, clients: Clients, state: ServerState, ids: Sequence[int], round: int) -> Tensor:
    """Return the group of each client after some have chosen by their losses; the others stay where they are."""
    candidates = [Candidate(*state.model(group)) for group in range(len(state.groups))]
    losses = clients.losses(candidates, ids, round=round)
    before = state.group_of
    group_of = torch.full((len(clients.roster),), COMMON) if before is None else before.clone()
    for client, found in losses.items():
        group_of[client] = sharing.choose(found.means)
    return group_of


def evaluate(algorithm: Algorithm, clients: Clients, state: ServerState) -> list[ClientScore]:
    """Return how each client's model does on its test part; a client that no model serves is left out."""
    sharing, everyone = algorithm.sharing, range(len(clients.roster))
    group_of = state.group_of
    if sharing.asks and group_of is not None:
        group_of = choose_groups(sharing, clients, state, everyone, state.round)
    if group_of is None:
        return list(clients.evaluate(state.shared, state.buffers, everyone, round=state.round))
    members: dict[int, list[int]] = {}
    for client, group in enumerate(group_of.tolist()):
        members.setdefault(group, []).append(client)
    scores: list[ClientScore] = []
    for group, own in sorted(members.items()):
        if group != COMMON or sharing.keeps_common:
            branch = GROUP if sharing.keeps_common and group != COMMON else ""
            scores += clients.evaluate(*state.model(group), own, round=state.round, branch=branch)
    return sorted(scores, key=lambda score: score.client)

"""Pools: clients of a round that share parameters, and what the server makes of their uploads.

Without groups there is one pool, of all clients and all parameters. With groups there is one pool for each group, of
the parameters that groups have for themselves, and one of all clients for the parameters that are common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedatlas.errors import TrainingError, UsageError
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Gathered
from fedatlas.parts.server_rule import ServerRule
from fedatlas.parts.sharing import COMMON
from fedatlas.parts.tensor_math import add, mean_change, weighted_sum, without
from fedatlas.parts.types import ClientInfo, Cohort, GroupState, Memory, Roster, ServerState, Tensors, Upload
from fedatlas.seeds import derive
from fedatlas.training.running_sum import Foreseen, RunningSum


class Pool:
    """Clients of one round that share parameters."""

    def __init__(
        self,
        algorithm: Algorithm,
        kept: GroupState,
        cohort: Cohort,
        expected: Sequence[ClientInfo],
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        """Take what the pool shares and remembers, its cohort before any upload, and the clients that shall answer.

        ``left_out`` are parameters and buffers that these clients share in another pool.
        """
        self.algorithm, self.kept, self.cohort, self.expected = algorithm, kept, cohort, expected
        self.memory: Memory = dict(kept.memory)
        self.uploads: list[Upload] = []
        self.weights = torch.empty(0)
        self._left_out = left_out
        self._gathered: Gathered | None = None
        foreseeable = not algorithm.combination and all(link.foreseeable for link in algorithm.weighting)
        # A function and not a method: a circle would keep the uploads, which may be in lent memory.
        foresee = partial(_foresee, algorithm, cohort, expected, self.memory)
        self._running = RunningSum(foresee if foreseeable else None)

    def gather(self, replies: Mapping[int, Memory]) -> None:
        """Let the server's rules gather the replies of the pool's clients before they train."""
        own = {client.id: self._cut_notes(replies[client.id]) for client in self.expected if client.id in replies}
        for rule in self.algorithm.server:
            found = {client: notes[rule.name] for client, notes in own.items() if rule.name in notes}
            if found:
                key = f"server/{rule.name}"
                self.memory[key] = rule.gather(self.memory[key], found, self.cohort.roster)

    def notes(self, client: ClientInfo) -> Memory:
        """Return the notes of the server's rules to a client."""
        rules = self.algorithm.server
        notes = ((rule.name, rule.note(self.memory[f"server/{rule.name}"], client)) for rule in rules)
        return {name: note for name, note in notes if note}

    def take(self, upload: Upload) -> None:
        """Take a client's upload, and add up what can be added."""
        if self._left_out:
            upload = replace(
                upload,
                change=without(upload.change, self._left_out),
                buffers=without(upload.buffers, self._left_out),
                notes=self._cut_notes(upload.notes),
            )
        self._running.add(upload.client, upload.change)
        self.uploads.append(upload)

    def weigh(self) -> None:
        """Compute how much each upload counts; there must be one, unless the combination also works on none."""
        self.uploads.sort(key=lambda upload: upload.client)
        self.cohort = replace(self.cohort, uploads=self.uploads)
        if self.uploads:
            found = self._running.weights(self.uploads)
            self.weights, weighed = found or _weigh(self.algorithm, self.cohort, self.memory)
            self.memory |= weighed
        if self.algorithm.combination:
            self._combine()

    def _combine(self) -> None:
        """Let the combination's links see the changes, and take the weights that they leave."""
        self._gathered = Gathered(
            changes=[upload.change for upload in self.uploads], moves=self._moves(), weights=self.weights
        )
        for link in self.algorithm.combination:
            key = f"combination/{link.name}"
            self._gathered, self.memory[key] = link.combine(self._gathered, self.memory[key], self.cohort)
            if link.ignores_weights and self.uploads:
                self.weights = torch.full_like(self.weights, 1 / len(self.uploads))
        if len(self._gathered.changes) == len(self.uploads):
            self.weights = self._gathered.weights

    @property
    def remarks(self) -> Mapping[str, Any]:
        """What the combination says of the round."""
        return {} if self._gathered is None else self._gathered.remarks

    def apply(self) -> GroupState:
        """Return what the pool shares and remembers after the server's rules have seen the weighted change."""
        uploads, weights, kept, found = self.uploads, self.weights, self.kept, self._gathered
        if found is None:
            change = self._running.total(uploads, weights) or mean_change(uploads, weights)
            moves: Sequence[Tensors] = self._moves()
        else:
            change, moves, weights = weighted_sum(found.changes, found.weights), found.moves, found.weights
        for rule in self.algorithm.server:
            key = f"server/{rule.name}"
            change, self.memory[key] = rule.apply(change, self.memory[key], self._cohort_for(rule))
        buffers = add(kept.buffers, weighted_sum(moves, weights)) if kept.buffers and moves[0] else kept.buffers
        return GroupState(shared=add(kept.shared, change), buffers=buffers, memory=self.memory)

    def _cohort_for(self, rule: ServerRule) -> Cohort:
        """Return the cohort as a server rule may see it: behind a combination, without single clients' changes."""
        if not self.algorithm.combination:
            return self.cohort
        closed: Any = [_Closed(upload, self.algorithm, rule) for upload in self.uploads]
        return replace(self.cohort, uploads=closed)

    def _moves(self) -> list[Tensors]:
        """Return how clients moved the shared buffers: as changes, so that one that nobody changed keeps its bits."""
        kept = self.kept.buffers
        return [add(upload.buffers, kept, -1.0) if kept else {} for upload in self.uploads]

    def _cut_notes(self, notes: Memory) -> Memory:
        if not self._left_out:
            return notes
        return {part: without(tensors, self._left_out) for part, tensors in notes.items()}


class _Closed:
    """An upload as a server rule sees it that works on the combined change; with privacy, without notes and metrics."""

    def __init__(self, upload: Upload, algorithm: Algorithm, rule: ServerRule) -> None:
        self._upload, self._algorithm, self._rule = upload, algorithm, rule

    def __getattr__(self, name: str) -> Any:
        if name in ("change", "buffers") or (self._algorithm.private and name in ("notes", "metrics", "score")):
            rule, link = type(self._rule).__name__, type(self._algorithm.combination[-1]).__name__
            raise UsageError(
                f"{self._algorithm.name}: the server rule {rule} reads the {name} of single clients, past {link}. Let "
                f"it use the change that apply() gets, or set reads_uploads = True in {rule} and leave {link} out.",
                code="base-unfit",
                base=self._algorithm.name,
                part=rule,
            )
        return getattr(self._upload, name)


class Pools:
    """The pools of one round."""

    def __init__(
        self,
        algorithm: Algorithm,
        state: ServerState,
        cohort: Cohort,
        chosen: Sequence[ClientInfo],
        rosters: GroupRosters,
    ) -> None:
        """Take the round's cohort before any upload, and the clients that shall answer."""
        self.algorithm, self.state = algorithm, state
        self.common: Pool | None = None
        self.groups: dict[int, Pool] = {}
        self._models: dict[int, tuple[Tensors, Tensors]] = {}
        grouped = frozenset(name for own in state.groups[:1] for name in (*own.shared, *own.buffers))
        common = frozenset((*state.shared, *state.buffers))
        if common or not state.groups:
            self.common = Pool(algorithm, state, replace(cohort, shared=state.shared), chosen, grouped)
        for group, members in self._members(chosen).items():
            own = state.groups[group]
            roster = rosters.of(state.group_of, group)
            draws = {client.id: cohort.draws[client.id] for client in members}
            seed = derive(cohort.seed, "group", group)
            part = replace(cohort, roster=roster, draws=draws, shared=own.shared, seed=seed)
            self.groups[group] = Pool(algorithm, own, part, members, common)

    def group_of(self, client: int) -> int:
        """Return the group of a client, or ``COMMON``."""
        return COMMON if self.state.group_of is None else int(self.state.group_of[client])

    @property
    def memory(self) -> Memory:
        """What the server remembers for all clients, as it is now."""
        return self.state.memory if self.common is None else self.common.memory

    def model(self, client: int) -> tuple[Tensors, Tensors]:
        """Return the parameters and buffers that a client gets; the same objects for all clients of a group."""
        group = self.group_of(client)
        if group not in self._models:
            self._models[group] = self.state.model(group)
        return self._models[group]

    def of(self, client: int) -> list[Pool]:
        """Return the pools that a client is in: that of all clients first, then that of its group."""
        own = self.groups.get(self.group_of(client))
        return [pool for pool in (self.common, own) if pool is not None]

    def gather(self, replies: Mapping[int, Memory]) -> None:
        """Let the rules of every pool gather the replies of its clients."""
        for pool in self:
            pool.gather(replies)

    def notes(self, client: ClientInfo) -> Memory:
        """Return the notes to a client; where both pools have the same tensor for it, that of its group counts."""
        found: Memory = {}
        for pool in self.of(client.id):
            for name, note in pool.notes(client).items():
                found[name] = {**found[name], **note} if name in found else note
        return found

    def take(self, upload: Upload) -> None:
        """Take a client's upload."""
        for pool in self.of(upload.client):
            pool.take(upload)

    def weights(self) -> dict[int, float]:
        """Weigh the uploads, and return how much each counts in its group, or among all where there are no groups."""
        found: dict[int, float] = {}
        for pool in self:
            if pool.uploads or self.algorithm.private:
                pool.weigh()
                found |= {u.client: w for u, w in zip(pool.uploads, pool.weights.tolist(), strict=True)}
        return dict(sorted(found.items()))

    def apply(self) -> tuple[GroupState, tuple[GroupState, ...]]:
        """Return what all clients share after the round, and what each group shares."""
        common: GroupState = self.state
        if self.common is not None and (self.common.uploads or self.algorithm.private):
            common = self.common.apply()
        groups = list(self.state.groups)
        for group, pool in self.groups.items():
            if pool.uploads:
                groups[group] = pool.apply()
        return common, tuple(groups)

    def remarks(self) -> dict[str, Any]:
        """Return what the combination says of the round, of all clients or by group."""
        found = {} if self.common is None else dict(self.common.remarks)
        own = {str(group): dict(pool.remarks) for group, pool in self.groups.items() if pool.remarks}
        return {**found, "groups": own} if own else found

    def __iter__(self) -> Iterator[Pool]:
        if self.common is not None:
            yield self.common
        yield from self.groups.values()

    def _members(self, chosen: Sequence[ClientInfo]) -> dict[int, list[ClientInfo]]:
        members: dict[int, list[ClientInfo]] = {}
        for client in chosen:
            if (group := self.group_of(client.id)) != COMMON:
                members.setdefault(group, []).append(client)
        return dict(sorted(members.items()))


class GroupRosters:
    """The roster as the parts of each group see it: the clients of other groups are held out."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._group_of: Tensor | None = None
        self._known: dict[int, Roster] = {}

    def of(self, group_of: Tensor | None, group: int) -> Roster:
        """Return the roster of a group; it is made once while the groups stay the same."""
        if group_of is None:
            return self._roster
        if group_of is not self._group_of:
            self._group_of, self._known = group_of, {}
        if group not in self._known:
            groups = group_of.tolist()
            self._known[group] = [
                client if groups[client.id] == group or client.held_out else replace(client, held_out=True)
                for client in self._roster
            ]
        return self._known[group]


def _foresee(algorithm: Algorithm, cohort: Cohort, clients: Sequence[ClientInfo], memory: Memory) -> Foreseen:
    """Return the weights that clients will have if all answer."""
    expected = [
        Upload(client=client.id, num_examples=client.num_examples, num_steps=0, change={}, buffers={})
        for client in clients
    ]
    weighed = _weigh(algorithm, replace(cohort, uploads=expected), memory)
    return Foreseen({client.id: client.num_examples for client in clients}, *weighed)


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

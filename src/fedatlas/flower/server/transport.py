"""Clients that are nodes of a Flower network. Their memory stays with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor, nn

from fedatlas.client.model import Workbench
from fedatlas.client.runner import num_held_back
from fedatlas.errors import UsageError
from fedatlas.flower.node.memory import NOTHING
from fedatlas.flower.protocol.checks import (
    check_losses,
    check_notes,
    check_score,
    check_survey,
    check_tested,
    check_upload,
)
from fedatlas.flower.protocol.data_form import Member
from fedatlas.flower.protocol.expectations import Expectations
from fedatlas.flower.protocol.messages import (
    ABOUT,
    BUFFERS,
    SHARED,
    BadReplyError,
    Packing,
    pack_assignment,
    plain,
    values,
)
from fedatlas.flower.server.exchange import Exchange
from fedatlas.flower.server.safety import out_of_scale, ruined
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.types import (
    Assignment,
    Branch,
    Candidate,
    ClientInfo,
    ClientLosses,
    ClientScore,
    InitialModel,
    Memory,
    ServerState,
    Tensors,
    Upload,
)

REMEMBERS, ROUND, TURN = "remembers", "round", "turn"
"""The entry of a client in a checkpoint: the round and turn of its valid memory. The memory itself is on the node."""


class Due(NamedTuple):
    """A test of a model that the next training's messages ask for."""

    shared: Tensors
    buffers: Tensors
    round: int
    then: Callable[[list[ClientScore]], None]
    """Takes the scores, before the training changes anything."""

    def is_of(self, assignment: Assignment) -> bool:
        """Return whether a client gets this model to train."""
        pairs = ((self.shared, assignment.shared), (self.buffers, assignment.buffers))
        return all(own.keys() == sent.keys() and all(own[n] is sent[n] for n in own) for own, sent in pairs)


TRIES = 3
"""How often clients are asked for a reply that the run cannot go on without."""


class FlowerClients:
    """Asks nodes to survey, train and test, and takes the replies that arrive in time and pass the checks.

    ``about`` is sent with every message and describes the run; its ``run`` names the run's memories on the nodes.
    """

    def __init__(
        self,
        exchange: Exchange,
        algorithm: Algorithm,
        network: nn.Module,
        members: Sequence[Member],
        expected: Expectations,
        *,
        about: Mapping[str, Any],
        action: str = "",
    ) -> None:
        self.exchange, self.members, self.expected, self.about = exchange, list(members), expected, dict(about)
        self.algorithm, self._bench = algorithm, Workbench(network, algorithm)
        self.roster: list[ClientInfo] = [
            ClientInfo(id=i, name=m.name, num_examples=m.num_train, held_out=m.held_out) for i, m in enumerate(members)
        ]
        self.memory: MutableMapping[int, Memory] = {}
        """The round and turn of each client's valid memory."""
        self.changed: set[int] = set()
        self._action = f".{action}" if action else ""
        self._saved: dict[int, Memory] = {}
        self._pending: dict[int, Memory] = {}
        self._earlier: dict[int, Memory] = {}
        """What was pending before the turn that is played."""
        self._silent: set[int] = set()
        self._due: Due | None = None
        self._packing = Packing()

    def introduce(self, known: Mapping[str, Memory] | None = None) -> dict[str, Memory]:
        """Ask all clients that are not in ``known`` for their introductions, and return all introductions by name."""
        if not self.expected.introductions.shapes:
            return {}
        answers = dict(known or {})
        held_out = {m.name: m.held_out for m in self.members}
        for _ in range(TRIES):
            missing = {m.name: i for i, m in enumerate(self.members) if m.name not in answers}
            if not missing:
                break
            self.exchange.wait_for(set(missing).issubset, f"the introductions of {', '.join(missing)}")
            answers |= self.exchange.ask(
                "query.introduce",
                {name: RecordDict({ABOUT: self._about(i)}) for name, i in missing.items()},
                lambda name, records: check_notes(records, self.expected.introductions, held_out=held_out[name]),
                round=0,
                stage="introduction",
            )
            self.exchange.check_allowed(name for name in missing if name not in answers)
        if silent := [m.name for m in self.members if m.name not in answers]:
            raise UsageError(
                f"{', '.join(silent)} did not send the introduction that {self.algorithm.name} needs before round 1. "
                "Look at the nodes' logs, or leave these clients out of flower.clients.",
                code="reply-missing",
                clients=silent,
            )
        self.roster = [replace(client, introduction=answers[client.name]) for client in self.roster]
        return answers

    def survey(self, assignments: Sequence[Assignment]) -> Mapping[int, Memory]:
        """Return the clients' survey replies, by client id."""
        self._begin(assignments[0].round, [a.client for a in assignments])
        if not assignments[0].turn:
            self._pending = {}
        contents = {self._name(a): self._packed(a) for a in assignments if self._is_served(a)}
        answers = self.exchange.ask(
            "query.survey",
            contents,
            lambda _, records: check_survey(records, self.expected.surveys),
            round=assignments[0].round,
            stage="survey",
        )
        found = {a.client: answers[self.members[a.client].name] for a in assignments if self._name(a) in answers}
        self._silent = {a.client for a in assignments} - found.keys()
        return found

    def initial(self) -> InitialModel:
        """Return the model before the first round."""
        return self._bench.first_model()

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        """Start training, and return an iterator over the uploads; new memories become valid with ``commit``."""
        self._begin(assignments[0].round, [a.client for a in assignments])
        if not assignments[0].turn:
            self._pending = {}
        self._earlier = dict(self._pending)
        asked = {self._name(a): a for a in assignments}
        remembers: dict[int, bool] = {}
        scores: dict[int, ClientScore] = {}

        def check(name: str, records: RecordDict) -> Upload:
            client = asked[name].client
            count = self._num_examples(client, kept=asked[name].holds_back)
            upload = check_upload(records, self.expected, client, count, self.members[client].num_test)
            remembers[client] = bool(values(records, ABOUT).get("remembers"))
            if client in tested:
                self._note_score(scores, client, records)
            return upload

        answering = [a for a in assignments if a.client not in self._silent and self._is_served(a)]
        due, self._due = self._due, None
        tested = {a.client for a in answering if due is not None and due.is_of(a)}
        contents = {self._name(a): self._packed(a, test=a.client in tested) for a in answering}
        self._silent = set()
        first = assignments[0]
        arriving = self.exchange.send(f"train{self._action}", contents, check, round=first.round, stage="training")
        if due is not None:
            others = [c for c in range(len(self.members)) if c not in tested]
            asked_only = self._ask_tests(due.shared, due.buffers, others, due.round)
            arriving = self._with_scores(due, arriving, asked_only, scores)
        return self._uploads(arriving, asked, first, remembers)

    def _with_scores(
        self,
        due: Due,
        arriving: Iterator[tuple[str, Upload]],
        others: Iterator[tuple[str, ClientScore | None]],
        scores: Mapping[int, ClientScore],
    ) -> Iterator[tuple[str, Upload]]:
        """Yield the uploads after all scores were handed over, those of clients that do not train too."""
        uploads = dict(arriving)
        found = [*scores.values(), *(score for _, score in others if score is not None)]
        due.then(sorted(found, key=lambda score: score.client))
        yield from uploads.items()

    def _uploads(
        self,
        arriving: Iterator[tuple[str, Upload]],
        asked: Mapping[str, Assignment],
        first: Assignment,
        remembers: Mapping[int, bool],
    ) -> Iterator[Upload]:
        """Yield the uploads when all replies are in; yield none if there are too few."""
        answers = dict(arriving)
        most = None if self.algorithm.private else self.exchange.settings.most_change
        received = {name: assignment.buffers for name, assignment in asked.items()}
        for name, reason in out_of_scale(answers, most, received).items():
            self.exchange.leave_out(name, "training", reason)
            del answers[name]
        least = self.exchange.settings.least(len(asked))
        if len(answers) < least:
            self.exchange.leave_out(
                "all", "round", f"{len(answers)} replies, at least {least} are needed: the model stays as it is"
            )
            return
        turn = {TURN: torch.tensor(first.turn)} if first.turn else {}
        state = {REMEMBERS: {ROUND: torch.tensor(first.round), **turn}}
        for upload in (answers[name] for name in asked if name in answers):
            if remembers[upload.client] or upload.client in self.memory or upload.client in self._pending:
                self._pending[upload.client] = state
            yield upload

    def prepare(self, round: int, clients: Sequence[int]) -> None:
        """Do nothing: nodes prepare their own batches."""

    def evaluate(
        self, shared: Tensors, buffers: Tensors, clients: Sequence[int], *, round: int, branch: Branch = ""
    ) -> list[ClientScore]:
        """Return the scores of the shared model, with each client's personal parameters, on the clients' test parts."""
        asked = self._ask_tests(shared, buffers, clients, round, branch=branch)
        scores = [score for _, score in asked if score is not None]
        return sorted(scores, key=lambda score: score.client)

    def test_later(
        self, shared: Tensors, buffers: Tensors, round: int, then: Callable[[list[ClientScore]], None]
    ) -> bool:
        """Let the clients test a model when they get it to train: one message in place of two."""
        self._due = Due(shared, buffers, round, then)
        return True

    def _ask_tests(
        self, shared: Tensors, buffers: Tensors, clients: Sequence[int], round: int, *, branch: Branch = ""
    ) -> Iterator[tuple[str, ClientScore | None]]:
        """Send a model to clients that have test examples, and return an iterator over their scores."""
        model = {SHARED: self._packing.arrays(shared), BUFFERS: self._packing.arrays(buffers)}
        tested = {self.members[c].name: c for c in clients if self.members[c].num_test}
        contents = {name: RecordDict({**model, ABOUT: self._about(c, branch=branch)}) for name, c in tested.items()}

        def check(name: str, records: RecordDict) -> ClientScore | None:
            client = tested[name]
            return check_score(records, client, self.members[client].num_test, self.expected)

        return self.exchange.send("evaluate", contents, check, round=round, stage="test")

    def _note_score(self, scores: dict[int, ClientScore], client: int, records: RecordDict) -> None:
        """Take the score of the model that a client received; a bad one leaves it out of the test only."""
        try:
            score = check_tested(records, client, self.members[client].num_test, self.expected)
        except BadReplyError as error:
            self.exchange.leave_out(self.members[client].name, "test", str(error))
            return
        if score is not None:
            scores[client] = score

    def losses(
        self, candidates: Sequence[Candidate], clients: Sequence[int], *, round: int, held_back: bool = False
    ) -> dict[int, ClientLosses]:
        """Return the clients' losses under some models; a client without such examples or a reply is left out."""
        if "means" not in self.expected.losses:
            part = type(self.algorithm.sharing).__name__
            raise UsageError(
                f"{part} asks clients for their losses and does not declare it. Add Disclosure('means', WHY, 'losses', "
                "(NUMBER,), torch.float64) to its discloses.",
                code="value-missing",
                name="means",
                part=part,
            )
        if not self.exchange.has_begun(round):  # when a round is over, nobody is waited for
            self._begin(round, clients)
        models = self._packing.candidates(candidates)
        counts = {c: self._num_examples(c, held_back=held_back) for c in clients}
        asked = {self.members[c].name: c for c in clients if counts[c]}
        question = {
            "held_back": held_back,
            "branches": [candidate.branch for candidate in candidates],
            "wanted": list(self.expected.losses),
        }
        answers = self.exchange.ask(
            "query.losses",
            {name: RecordDict({**models, ABOUT: self._about(c, **question)}) for name, c in asked.items()},
            lambda name, records: check_losses(records, self.expected.losses, counts[asked[name]]),
            round=round,
            stage="losses",
        )
        return {client: answers[name] for name, client in asked.items() if name in answers}

    def saved(self) -> None:
        """Take note that a checkpoint names the memories as they are now: nodes keep these."""
        self.changed.clear()
        self._saved = dict(self.memory)

    def takes(self, before: ServerState, after: ServerState, uploads: Sequence[Upload]) -> bool:
        """Return whether a round left the model whole; if not, the record names all who were in it."""
        fault = ruined(before, after, uploads)
        if fault is None:
            return True
        names = ", ".join(self.members[upload.client].name for upload in uploads)
        self.exchange.leave_out("all", "round", f"{fault}: the model stays as it is. In the round were {names}")
        self._pending = self._earlier
        return False

    def commit(self) -> None:
        """Make the memories of a finished round the valid ones."""
        self.memory.update(self._pending)
        self.changed |= self._pending.keys()
        self._pending = {}

    def place(self, tensor: Tensor) -> Tensor:
        """Return the tensor unchanged: the server computes on the CPU, where files are read to."""
        return tensor

    def fallbacks(self) -> dict[str, int]:
        """Return an empty dict: each node chooses its engine itself."""
        return {}

    def remarks(self, round: int) -> Mapping[str, Any]:
        """Return the clients that were left out of a round and why, and the bytes that each client got and sent."""
        return asdict(self.exchange.log(round))

    def _begin(self, round: int, clients: Sequence[int]) -> None:
        """Wait for as many clients of the cohort as a round needs."""
        if not self._action:
            self.exchange.start_round(round)
        if not self.changed:  # a resumed run goes on from what its checkpoint names
            self._saved = dict(self.memory)
        cohort = {self.members[client].name for client in clients}
        least = self.exchange.settings.least(len(cohort))
        what = f"{least} of the {len(cohort)} clients of round {round}"
        self.exchange.wait_for(lambda online: len(online & cohort) >= least, what)

    def _name(self, assignment: Assignment) -> str:
        return self.members[assignment.client].name

    def _is_served(self, assignment: Assignment) -> bool:
        """Return whether there is a model for the client: one that has not said its losses may be in no group yet."""
        return assignment.shared.keys() == self.expected.change.keys()

    def _num_examples(self, client: int, *, kept: bool = False, held_back: bool = False) -> int:
        """Return how many training examples a client has, or how many of them it trains on or holds back in a trial."""
        count = self.members[client].num_train
        if held_back:
            return num_held_back(count)
        return count - num_held_back(count) if kept else count

    def _packed(self, assignment: Assignment, *, test: bool = False) -> RecordDict:
        shared, buffers = self._packing.arrays(assignment.shared), self._packing.arrays(assignment.buffers)
        more = {"test": True} if test else {}
        return pack_assignment(assignment, self._about(assignment.client, **more), shared, buffers)

    def _about(self, client: int, **more: Any) -> ConfigRecord:
        valid, saved = version_of(self.memory, client), version_of(self._saved, client)
        version = version_of(self._pending, client) if client in self._pending else valid
        own = {
            "place": sum(other.held_out == self.members[client].held_out for other in self.members[:client]),
            "version": version,
            "keep": sorted({version, valid, saved}),
        }
        return plain({**self.about, **own, **more})


def version_of(memory: Mapping[int, Memory], client: int) -> str:
    """Return which of its memories a client shall use, given what a checkpoint keeps of all."""
    if client not in memory:
        return NOTHING
    known = memory[client][REMEMBERS]
    return f"{int(known[ROUND])}.{int(known[TURN])}" if TURN in known else str(int(known[ROUND]))

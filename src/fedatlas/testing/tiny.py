"""Tiny plays of an algorithm in which every tensor is watched; ``checking`` is built on them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from fedatlas.client.work import LocalWork
from fedatlas.data.dataset import Dataset
from fedatlas.data.federation import Client, Federation
from fedatlas.engines.simulator import Simulator
from fedatlas.errors import AlgorithmCheckError, UsageError, unknown_name
from fedatlas.models.classifier import Classifier
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.disclosure import When
from fedatlas.parts.types import (
    Assignment,
    Candidate,
    ClientInfo,
    ClientLosses,
    Memory,
    ServerState,
    Tensors,
    Upload,
)
from fedatlas.seeds import derive, generator
from fedatlas.training.draws import SamplingError
from fedatlas.training.rounds import RoundRecord, initial_state, play

Kind = Literal["features", "images"]
ROUNDS = 4
SEED = 0
SIZES = (16, 9, 1, 12, 20, 10, 8, 8)
"""Training examples of the tiny federation's clients; the third has one only, the fourth one class only."""


def tiny_federation(kind: Kind = "features") -> Federation:
    """Return eight unequal clients, two of them held out, with three learnable classes of features or images."""
    if kind not in ("features", "images"):
        raise unknown_name("kind of tiny federation", kind, ("features", "images"))
    rng = generator(SEED, "tiny", kind)
    num_tests = 5
    labels = torch.randint(3, (sum(SIZES) + num_tests * len(SIZES),), generator=rng)
    clients, start = [], 0
    for i, size in enumerate(SIZES):
        own = torch.arange(start, start + size + num_tests)
        start += len(own)
        if i == 3:
            labels[own] = 0
        train, test = own.split([size, num_tests])
        clients.append(Client(name=f"client-{i}", train=train, test=test, domain="AB"[i % 2], held_out=i >= 6))
    shape = (4,) if kind == "features" else (3, 8, 8)
    inputs = torch.randn(3, *shape, generator=rng)[labels] + torch.randn(len(labels), *shape, generator=rng)
    if kind == "images":
        inputs = (inputs * 40 + 128).clamp(0, 255).to(torch.uint8)
    data = Dataset(name=f"tiny {kind}", inputs=inputs, labels=labels, classes=("a", "b", "c"))
    return Federation(data=data, clients=tuple(clients), partition="tiny")


class TinyNetwork(Classifier):
    """A linear layer or a convolution with batch normalisation and dropout, and a head."""

    def __init__(self, num_inputs: int, num_classes: int, *, images: bool) -> None:
        super().__init__()
        self.body = nn.Conv2d(num_inputs, 6, 3) if images else nn.Linear(num_inputs, 6)
        self.norm = nn.BatchNorm2d(6) if images else nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(6, num_classes)

    def extract(self, inputs: Tensor) -> Tensor:
        """Return the mean of the normalised map, or the normalised vector."""
        features: Tensor = self.dropout(torch.relu(self.norm(self.body(inputs))))
        return features.flatten(2).mean(2) if features.ndim == 4 else features


def tiny_model(federation: Federation) -> nn.Module:
    """Return a small network for the examples of a federation."""
    kind = federation.data.kind
    if kind == "tokens":
        raise UsageError(
            f"{federation.name} holds tokens, for which there is no tiny model; give model=...", code="model-missing"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(SEED, "tiny model"))
        return TinyNetwork(federation.data.inputs.shape[1], federation.num_classes, images=kind == "image")


def tiny_clients(algorithm: Algorithm, kind: Kind = "features") -> Simulator:
    """Return the clients of a tiny federation, with a tiny model, ready to be played with."""
    federation = tiny_federation(kind)
    return Simulator(algorithm, algorithm.extend(tiny_model(federation)), federation, workers=1)


class Watched:
    """Clients of which one may be lost, and whose parts may not change in place what they receive."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator, self.roster = simulator, simulator.roster
        self.initial, self.prepare, self.commit = simulator.initial, simulator.prepare, simulator.commit
        self.evaluate, self.takes = simulator.evaluate, simulator.takes
        self.lost: int | None = None
        """The client whose upload does not arrive."""
        self.in_vain = True
        """Whether that client trains all the same."""
        self.arrived: Tensors = {}
        """Copies of the last uploads' tensors, as they arrived."""
        self.compared: list[tuple[int, ClientLosses]] = []
        """All losses that clients were asked for, with the clients' ids."""

    def losses(
        self, candidates: Sequence[Candidate], clients: Sequence[int], *, round: int, held_back: bool = False
    ) -> Mapping[int, ClientLosses]:
        """Return the clients' losses under some models."""
        found = self.simulator.losses(candidates, clients, round=round, held_back=held_back)
        self.compared += found.items()
        return found

    def survey(self, assignments: Sequence[Assignment]) -> Mapping[int, Memory]:
        """Return the clients' replies before training."""
        with self._untouched(assignments):
            return self.simulator.survey(assignments)

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        """Train, and return an iterator over the uploads."""
        simulator = self.simulator
        with self._untouched(assignments):
            for assignment in assignments:
                if assignment.client == self.lost and self.in_vain:
                    simulator.runner.train(assignment, simulator.memory.get(assignment.client, {}))
            uploads = list(simulator.train([a for a in assignments if a.client != self.lost]))
        self.arrived = copies(answer_tensors(uploads))
        return iter(uploads)

    @contextmanager
    def _untouched(self, assignments: Sequence[Assignment]) -> Iterator[None]:
        def received() -> Tensors:
            found: Tensors = {}
            for a in assignments:
                found |= named("shared", a.shared) | named("buffer", a.buffers) | flat(f"note to {a.client}", a.notes)
                found |= flat(f"memory of client {a.client}", self.simulator.memory.get(a.client, {}))
            return found

        before = copies(received())
        yield
        if where := difference(before, received()):
            raise failed(
                self.simulator.runner.algorithm,
                "received tensors",
                f"a client changed what it was given in place: {where}",
                "Replace entries of local.memory by new tensors, and leave what the server sent alone.",
            )


class Play:
    """One play of an algorithm, round by round; a round may not change in place what it was given."""

    def __init__(self, algorithm: Algorithm, model: nn.Module, federation: Federation, workers: int = 1) -> None:
        self.algorithm, self.federation = algorithm, federation
        # Without captured steps, which take for granted what is checked here.
        engine = "workers" if workers > 1 else "loop"
        network, work = copy.deepcopy(model), LocalWork(batch_size=8)
        self.simulator = Simulator(algorithm, network, federation, work=work, seed=SEED, workers=workers, engine=engine)
        self.clients = Watched(self.simulator)
        self.state = initial_state(algorithm, self.clients)
        self.records: list[RoundRecord] = []
        self.sent: list[tuple[When, ClientInfo, Memory, bool]] = [
            ("introduction", client, client.introduction, False) for client in self.clients.roster
        ]
        """All that left a client beyond the model's change: when, whose, what, and whether it had taken a step."""

    def round(self, cohort_size: int) -> None:
        """Play a round and look at all that it left."""
        last = self.state
        before = copies(state_tensors(last))
        rounds = play(self.algorithm, self.clients, rounds=ROUNDS, cohort_size=cohort_size, seed=SEED, state=last)
        try:
            found = next(rounds)
        except SamplingError as error:
            raise failed(self.algorithm, "sampling", str(error)) from error
        self.state = found.state
        self.records.append(found.record)
        roster = self.clients.roster
        self.sent += [("losses", roster[client], self._said(losses), False) for client, losses in self.clients.compared]
        self.clients.compared.clear()
        self.sent += [("survey", roster[client], reply, False) for client, reply in found.surveys.items()]
        self.sent += [("upload", roster[u.client], u.notes, u.num_steps > 0) for u in found.uploads]
        self._check_unchanged(before, state_tensors(last), "the server changed the last round's state in place")
        arrived = answer_tensors(found.uploads)
        self._check_unchanged(self.clients.arrived, arrived, "the server changed an answer in place")
        self._check_form()

    def _said(self, losses: ClientLosses) -> Memory:
        """Return what a client says of its losses: the means, and the other fields that the sharing declares."""
        sharing = self.algorithm.sharing
        names = {"means", *(own.name for own in sharing.discloses if own.when == "losses")}
        fields = {name: torch.as_tensor(value) for name, value in losses._asdict().items()}
        return {sharing.name: {name: fields[name] for name in fields if name in names}}

    def tensors(self) -> Tensors:
        """Return all that the play has left behind so far, by what it is."""
        found = state_tensors(self.state)
        for client, memory in sorted(self.simulator.memory.items()):
            found |= flat(f"memory of client {client}", memory)
        return found

    def _check_unchanged(self, before: Tensors, after: Tensors, what: str) -> None:
        if where := difference(before, after):
            do = "Return new tensors (a + b), never the same ones changed (a += b)."
            raise failed(self.algorithm, "received tensors", f"{what}: {where}", do)

    def _check_form(self) -> None:
        tensors = self.tensors()
        copies(tensors)
        for key, tensor in tensors.items():
            if tensor.requires_grad:
                what = f"{key} drags the graph of its gradient along"
                raise failed(self.algorithm, "memory", what, "Remember detached tensors only.")
            # What a part remembers may be infinite on purpose, but never NaN.
            sound = ~tensor.isnan() if "memory" in key else tensor.isfinite()
            if not bool(sound.all()):
                what = f"{key} is not finite after round {self.state.round}"
                raise failed(self.algorithm, "finite", what, "Guard divisions, logarithms and powers.")
        start = self.simulator.initial().shared
        owned = [item for own in (self.state, *self.state.groups) for item in own.shared.items()]
        for name, tensor in owned:
            if tensor.shape != start[name].shape or tensor.dtype != start[name].dtype:
                what = f"{name} became {tensor.dtype} of shape {tuple(tensor.shape)}"
                raise failed(self.algorithm, "form", what, "Let server rules return changes of the parameters' form.")


def state_tensors(state: ServerState) -> Tensors:
    """Return the tensors of the server's state, by what they are."""
    found: Tensors = {} if state.group_of is None else {"group of each client": state.group_of}
    for title, own in (("", state), *((f"group {i}: ", group) for i, group in enumerate(state.groups))):
        found |= named(f"{title}shared", own.shared) | named(f"{title}buffer", own.buffers)
        found |= flat(f"{title}server memory", own.memory)
    return found


def answer_tensors(uploads: Sequence[Upload]) -> Tensors:
    """Return the tensors of clients' answers, by what they are."""
    found: Tensors = {}
    for upload in uploads:
        who = f"of client {upload.client}"
        found |= named(f"change {who}", upload.change) | named(f"buffer {who}", upload.buffers)
        found |= flat(f"note {who}", upload.notes)
    return found


def named(title: str, tensors: Tensors) -> Tensors:
    """Return tensors under names that say what they are."""
    return {f"{title} {name}": tensor for name, tensor in tensors.items()}


def flat(title: str, memory: Memory) -> Tensors:
    """Return the tensors of a memory under names that say what they are."""
    return {f"{title}, {part} {name}": t for part, tensors in memory.items() for name, t in tensors.items()}


def copies(tensors: Tensors) -> Tensors:
    """Return copies of tensors, refusing what is none."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__} and not a tensor")
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def difference(one: Tensors, other: Tensors) -> str | None:
    """Return the first name under which two dictionaries do not hold the same bits."""
    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other:
            return name
        a, b = one[name], other[name]
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            return name
    return None


def failed(algorithm: Algorithm, check: str, what: str, do: str = "") -> AlgorithmCheckError:
    """Return the error for a broken promise."""
    text = f"{algorithm.name}, check {check!r}: {what.rstrip('.')}. {do}".rstrip()
    return AlgorithmCheckError(text, code="promise-broken", algorithm=algorithm.name, check=check)


@contextmanager
def checking(algorithm: Algorithm, check: str, do: str) -> Iterator[None]:
    """Turn whatever error comes up into one that names the check."""
    try:
        yield
    except AlgorithmCheckError:
        raise
    except Exception as error:
        raise failed(algorithm, check, f"{type(error).__name__}: {' '.join(str(error).split())}", do) from error

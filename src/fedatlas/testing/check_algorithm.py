"""Checks that every algorithm must pass; run ``check_algorithm`` on your own recipe.

Each check is a promise that the engine relies on: results come from the seed alone, whatever the number of workers;
a stopped run goes on to the same bits; clients may be missing; what was received is left as it was; what leaves a
client is declared.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from fedatlas.client.model import OPTIMIZER, PERSONAL
from fedatlas.data.federation import Federation
from fedatlas.engines.workers import fork_available
from fedatlas.errors import expect
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.combination import Combination, Gathered
from fedatlas.parts.disclosure import CHECKED, Dimensions, Disclosure, declared
from fedatlas.parts.types import Cohort, Tensors
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.testing.tiny import (
    ROUNDS,
    SEED,
    Kind,
    Play,
    checking,
    difference,
    failed,
    tiny_federation,
    tiny_model,
)
from fedatlas.training.groups import evaluate
from fedatlas.training.model import Model, make_model
from fedatlas.training.rounds import restored_state
from fedatlas.training.train import fingerprint

CPU = torch.device("cpu")
STOP = ROUNDS // 2
"""The round after which a play is stopped and resumed."""


def check_algorithm(
    algorithm: Algorithm,
    *,
    kind: Kind = "features",
    federation: Federation | None = None,
    model: Model | None = None,
) -> None:
    """Play a few tiny rounds and raise ``AlgorithmCheckError`` at the first promise that the algorithm breaks.

    Args:
        kind: the built-in federation to play on, where ``federation`` is not given. Both have clients of unequal
            sizes, one of a single example, one of a single class, and two that are held out.
        model: a name, a module or a function that makes one; by default a small network with batch normalisation
            and dropout.

    >>> from fedatlas.algorithms import fedprox
    >>> check_algorithm(fedprox(mu=0.1))
    """
    do = "Call the recipe: check_algorithm(my_recipe())."
    expect(algorithm, Algorithm, "check_algorithm(algorithm) must be an algorithm", do)
    federation = federation if federation is not None else tiny_federation(kind)
    with _global_generators_kept():
        _check_description(algorithm)
        trial = _Trial(algorithm, federation, _network(algorithm, model or tiny_model(federation), federation))
        whole = trial.play(ROUNDS)
        _check_disclosures(algorithm, whole)
        _check_repeats(trial, whole)
        _check_workers(trial, whole)
        _check_resumes(trial, whole)
        _check_missing_answer(trial)
        _check_cohorts(trial)
        _check_single_uploads(trial)


class _Trial:
    """An algorithm, a network and a federation, to be played again and again."""

    def __init__(self, algorithm: Algorithm, federation: Federation, network: nn.Module) -> None:
        self.algorithm, self.federation, self.network = algorithm, federation, network
        self.num_clients = len(federation.training_ids)
        self.cohort_size = (self.num_clients + 1) // 2
        self.num_plays = 0

    def start(self, algorithm: Algorithm | None = None, *, workers: int = 1) -> Play:
        """Return a play that has not begun. Global generators give other numbers than in the last one."""
        self.num_plays += 1
        _seed_global_generators(self.num_plays)
        return Play(algorithm or copy.deepcopy(self.algorithm), self.network, self.federation, workers)

    def play(self, rounds: int, algorithm: Algorithm | None = None, *, workers: int = 1) -> Play:
        """Return a play after some rounds and a test of all clients."""
        examples = fingerprint(self.federation)
        with checking(self.algorithm, "plays", "Look at the error that this one comes from."):
            play = self.start(algorithm, workers=workers)
            with play.simulator:
                for _ in range(rounds):
                    play.round(self.cohort_size)
                evaluate(play.algorithm, play.simulator, play.state)
        if fingerprint(self.federation) != examples:
            what = "the clients' examples were changed in place"
            raise failed(self.algorithm, "data", what, "Leave local.data alone, and return a new batch from prepare().")
        return play


def _check_description(algorithm: Algorithm) -> None:
    """Every part is a frozen dataclass with a name, and the whole can be written down."""
    slots = (algorithm.sampler, algorithm.sharing, *algorithm.objective, *algorithm.weighting, *algorithm.combination)
    for part in (*slots, *algorithm.server, algorithm.split, algorithm.optimizer, *algorithm.extensions):
        if not is_dataclass(part) or not getattr(part, "__dataclass_params__").frozen:  # noqa: B009
            what = f"{type(part).__name__} is not a frozen dataclass"
            do = "Write @dataclass(frozen=True, kw_only=True) above it and make its settings fields."
            raise failed(algorithm, "description", what, do)
    do = "Make settings numbers, strings, tuples or frozen dataclasses, so that two runs can be compared."
    with checking(algorithm, "description", do):
        text = json.dumps(algorithm.describe())
    if " at 0x" in text or "<lambda>" in text:
        raise failed(algorithm, "description", "a setting has no lasting name in algorithm.describe()", do)
    for part in algorithm.parts():
        name, title = getattr(part, "name", None), type(part).__name__
        if not isinstance(name, str) or not name or "|" in name or name in (PERSONAL, OPTIMIZER):
            do = f"Choose a word without '|', and neither {PERSONAL!r} nor {OPTIMIZER!r}, which the engine uses."
            raise failed(algorithm, "names", f"{title} is named {name!r}", do)
        if not isinstance(part.discloses, tuple) or not all(isinstance(one, Disclosure) for one in part.discloses):
            do = "Make it a tuple: (Disclosure('label_counts', 'how many examples of each class', ...),)."
            raise failed(algorithm, "disclosures", f"{title}.discloses is {part.discloses!r}", do)


def _network(algorithm: Algorithm, model: Model, federation: Federation) -> nn.Module:
    """Return the network that the algorithm trains; its extensions must make the same one each time."""
    plain = make_model(copy.deepcopy(model), {}, federation, Algorithm(name="plain"), SEED, try_on=CPU)
    networks = []
    with checking(algorithm, "extensions", "Look at the error that this one comes from."):
        for number in (1, 2):
            _seed_global_generators(number)
            networks.append(make_model(copy.deepcopy(plain), {}, federation, algorithm, SEED))
    one, two = (dict(network.state_dict()) for network in networks)
    if where := difference(one, two):
        do = "Initialise from fedatlas.seeds.generator(...), or under torch.random.fork_rng with a seed."
        raise failed(algorithm, "extensions", f"{where} starts with other values each time", do)
    return networks[0]


def _check_disclosures(algorithm: Algorithm, play: Play) -> None:
    """What leaves a client is declared, and no part's introduction hides another's."""
    simulator, data = play.simulator, play.federation.data
    shape = tuple(data.inputs.shape[1:])
    dimensions = Dimensions.of(simulator.runner.bench.model, simulator.initial().shared, shape, len(data.classes))
    known = {when: declared(algorithm.parts(), when, dimensions) for when in CHECKED}
    for when, client, said, stepped in play.sent:
        if fault := known[when].fault(said, held_out=client.held_out, stepped=stepped):
            what = f"what clients send is not what the parts declare ({when}): {fault}"
            do = "Set discloses = (Disclosure(name, why, when, axes),) on the part, as docs/parts.md shows."
            raise failed(algorithm, "disclosures", what, do)
    first = simulator.runner.data(play.federation.training_ids[0])
    names = [part.name for part in algorithm.parts() if part.introduce(first)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        what = f"two parts named {twice[0]!r} introduce a client, and one overwrites the other"
        raise failed(algorithm, "names", what, "Let one of them introduce, or name them differently.")


def _check_repeats(trial: _Trial, whole: Play) -> None:
    """The same parts give the same bits again, from the seed alone."""
    again = trial.play(ROUNDS, whole.algorithm)
    if where := _unlike(whole, again):
        pairs = zip(trial.algorithm.parts(), whole.algorithm.parts(), strict=True)
        used = [type(fresh).__name__ for fresh, part in pairs if repr(vars(fresh)) != repr(vars(part))]
        hint = f"; {used[0]} changed itself while it ran" if used else ""
        raise failed(
            trial.algorithm,
            "repeats",
            f"two plays from one seed differ, first in {where}{hint}",
            "Draw from local.seed or from the generator that is passed, never from a global one, and remember in "
            "local.memory or in the memory that is returned, never on the part.",
        )


def _check_workers(trial: _Trial, whole: Play) -> None:
    """Two processes give the bits of one."""
    if not fork_available():
        return
    two = trial.play(ROUNDS, workers=2)
    if where := _unlike(whole, two):
        what = f"two workers do not give what one gives, first in {where}"
        do = "Keep nothing on parts, classes or modules: clients may run in other processes and in any order."
        raise failed(trial.algorithm, "workers", what, do)


def _check_resumes(trial: _Trial, whole: Play) -> None:
    """What is remembered can be written and read, and a play goes on from it to the same bits."""
    stopped = trial.play(STOP)
    clients = stopped.simulator.memory
    do = "Remember plain tensors, in dictionaries of names."
    with tempfile.TemporaryDirectory(prefix="fedatlas-check-") as folder, checking(trial.algorithm, "memory", do):
        CheckpointStore(Path(folder)).save(stopped.state, clients, set(clients), {})
        found = CheckpointStore(Path(folder)).load()  # without a limit, so all of it before the folder goes
    resumed = trial.start()
    resumed.state = restored_state(resumed.algorithm, found.state)
    resumed.simulator.memory = found.clients
    if where := difference(stopped.tensors(), resumed.tensors()):
        raise failed(trial.algorithm, "memory", f"{where} comes back from its file otherwise than it was written", do)
    with checking(trial.algorithm, "resumes", "Look for an empty dict in a memory: a file does not keep it."):
        for _ in range(ROUNDS - STOP):
            resumed.round(trial.cohort_size)
    resumed.records[:0] = stopped.records
    if where := _unlike(whole, resumed):
        what = f"a play that was stopped and resumed differs from one that was not, first in {where}"
        do = "Keep all that a later round needs in local.memory or in the memory that is returned."
        raise failed(trial.algorithm, "resumes", what, do)


def _check_missing_answer(trial: _Trial) -> None:
    """A client's answer is lost: the others' count, and all is as if the client had never begun the round."""
    if trial.num_clients == 1:
        return
    plays = []
    with checking(trial.algorithm, "missing answer", "Go by cohort.uploads and not by who was asked."):
        for in_vain in (True, False):
            play = trial.start()
            play.round(trial.num_clients)
            play.clients.lost, play.clients.in_vain = trial.federation.training_ids[-1], in_vain
            play.round(trial.num_clients)
            play.clients.lost = None
            play.round(trial.num_clients)
            plays.append(play)
    if where := _unlike(*plays):
        what = f"a client whose answer was lost leaves a trace, first in {where}"
        do = "Let a client remember by local.memory only, which a lost round does not change."
        raise failed(trial.algorithm, "missing answer", what, do)


def _check_cohorts(trial: _Trial) -> None:
    """A round may have one client or all."""
    with checking(trial.algorithm, "cohorts", "Let it work with one client a round, and with all."):
        play = trial.start()
        for size in (1, trial.num_clients, 1):
            play.round(size)


@dataclass(frozen=True, kw_only=True)
class _PassingOn(Combination):
    """A combination that leaves all as it is."""

    name: ClassVar[str] = "passing_on"

    def combine(self, gathered: Gathered, memory: Tensors, cohort: Cohort) -> tuple[Gathered, Tensors]:
        return gathered, memory


def _check_single_uploads(trial: _Trial) -> None:
    """A server rule that looks at single clients' changes says so, or it would take them past a defence or noise."""
    algorithm = trial.algorithm
    if algorithm.combination or any(rule.reads_uploads or rule.ignores_weights for rule in algorithm.server):
        return
    do = "Set reads_uploads = True in the rule, or let it use the change that apply() gets."
    with checking(algorithm, "single uploads", do):
        trial.start(algorithm.with_combination(_PassingOn())).round(trial.num_clients)


def _unlike(one: Play, other: Play) -> str | None:
    """Return the first thing in which two plays differ."""
    tensors = difference(one.tensors(), other.tensors())
    rounds = (f"round {a.round}" for a, b in zip(one.records, other.records, strict=True) if a != b)
    return next(rounds, tensors)


def _seed_global_generators(number: int) -> None:
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])

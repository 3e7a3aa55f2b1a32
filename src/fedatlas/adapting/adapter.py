"""Adapt a run's model to one client: tune the personal parameters, and keep the shared ones fixed.

What is personal is the algorithm's choice: an embedding, the norms, the head. Where nothing is, there is only a test.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedatlas.adapting.result import Adapted
from fedatlas.adapting.settings import AdaptSettings
from fedatlas.adapting.tuning import Tuning
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.provenance import warn_of_other_run
from fedatlas.client.data import ResidentData
from fedatlas.client.model import PERSONAL
from fedatlas.client.runner import ClientRunner
from fedatlas.client.scoring import mean_personal
from fedatlas.client.work import LocalWork
from fedatlas.config.reopen import run_algorithm, run_augment, run_federation, run_network
from fedatlas.data import Dataset, Federation
from fedatlas.data.dataset import first_few
from fedatlas.errors import DataError, UsageError, expect, expect_number, unknown_name
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import CrossEntropy
from fedatlas.parts.types import ClientScore, Tensors
from fedatlas.runs.files import atomic_write
from fedatlas.runs.run import ADAPTED, Run
from fedatlas.seeds import Seeds, numpy_generator, repeatable
from fedatlas.training.model import Model
from fedatlas.training.train import fingerprint

Start = Literal["own", "initial", "mean", "first", "nearest"]
STARTS = ("own", "initial", "mean", "first", "nearest")


class Adapter:
    """A run, opened once to adapt its model to any number of clients.

    ``data`` is another federation than the run's, or a data set: one new client, or one for each owner or domain in it;
    a run from Python does not know its data and needs it. ``model`` and ``algorithm`` are needed where they cannot be
    built by name.
    """

    def __init__(
        self,
        run: Run,
        *,
        data: Federation | Dataset | None = None,
        algorithm: Algorithm | None = None,
        model: Model | None = None,
        device: str = "cpu",
    ) -> None:
        expect(run, Run, "run must be a run", "Open its folder: fedatlas.Run(folder).")
        if data is not None:
            what = "data must be a federation or a data set"
            expect(data, (Federation, Dataset), what, "Read a file by fedatlas.load_dataset(path).")
        self.run, self.device, self.seeds = run, torch.device(device), Seeds(**run.resolved["seeds"])
        self.algorithm = run_algorithm(run, algorithm)
        federation = run_federation(run, data)
        network = run_network(run, federation, self.algorithm, model)
        checkpoint = run.checkpoint()
        self.round = checkpoint.state.round
        """The last round of the run."""
        shared, buffers = checkpoint.state.shared, checkpoint.state.buffers
        _rest(network, shared, self.algorithm, run)
        self.federation = federation.to(self.device)
        # Cross-entropy alone: what other terms need, such as a server's notes, a client on its own does not get.
        tuning = replace(self.algorithm, objective=(CrossEntropy(),))
        self.runner = ClientRunner(tuning, network.to(self.device), self.federation, LocalWork(), self.seeds.batches)
        self.buffers = self._placed(buffers)
        self.known = {c: self._placed(m[PERSONAL]) for c, m in sorted(checkpoint.clients.items()) if PERSONAL in m}
        """The own parameters of the clients that trained."""
        self.num_bytes = sum(tensor.nbytes for tensor in (*shared.values(), *buffers.values()))
        self._has_runs_clients = fingerprint(federation) == run.resolved["federation"]["fingerprint"]

    @property
    def held_out(self) -> list[str]:
        """The names of the clients that never train."""
        return [client.name for client in self.federation if client.held_out]

    @cached_property
    def embedding_name(self) -> str | None:
        """The name of the embedding among the personal parameters, if there is one."""
        bench = self.runner.bench
        found = (extension.client_vector(bench.model) for extension in self.algorithm.extensions)
        return next((name for name in found if name in bench.personal), None)

    def adapt(self, client: str | int | None = None, *, examples: int | None = None, **settings: Any) -> Adapted:
        """Tune the personal parameters on one client's training part; the settings are those of ``adapt_all``."""
        return self.adapt_all([self.position(client)], examples=examples, **settings)[0]

    def adapt_all(
        self,
        clients: Sequence[str | int] | None = None,
        settings: AdaptSettings | None = None,
        *,
        start: Start | Tensors | None = None,
        atlas: Atlas | None = None,
        examples: int | Sequence[int | None] | None = None,
        **changes: Any,
    ) -> list[Adapted]:
        """Tune the personal parameters on each client's training part; test before and after on its test part.

        Clients do not hear of each other; where the network allows it, their batches pass through it together. All is
        in float32, as tests are.

        Args:
            clients: names or positions; None is all that were held out. One may be there twice.
            settings: how long and how fast; ``changes`` are fields of ``AdaptSettings``, such as ``rounds`` and ``lr``.
            start: ``own`` values of a client that trained; ``initial``, as clients of the run began; the ``mean`` of
                those that trained; those of the ``first`` that did; of the ``nearest`` in ``atlas`` that did; or
                tensors by name. None is the client's own if it trained, else what the algorithm gives newcomers.
            atlas: for ``nearest``; the client must be in it (``atlas.add_client`` puts one there).
            examples: use this many training examples only, or one number for each client; fewer are among more.
        """
        settings = (settings or AdaptSettings()).changed(changes)
        numbers, counts = self._chosen(clients, examples)
        if atlas is not None:
            self._check_atlas(atlas, start)
        seed = self.seeds.batches if settings.seed is None else settings.seed
        data = [self._training_data(number, count, seed) for number, count in zip(numbers, counts, strict=True)]
        first, origins = zip(*(self._start(start, number, atlas) for number in numbers), strict=True)
        tuning = self._tuning(settings, data, seed)
        before = [self.score(number, own) for number, own in zip(numbers, first, strict=True)]
        personal, curves = self._tune(tuning, settings, numbers, first)
        self._warn_of_idle(tuning)
        tuned = self.runner.bench.parameters.values()
        return [
            Adapted(
                client=own.name,
                domain=own.client.kind,
                before=before[i],
                after=self.score(numbers[i], personal[i]),
                num_examples=own.num_examples if self.runner.bench.personal else 0,
                num_steps=tuning.num_steps[i],
                num_tuned=sum(parameter.numel() for parameter in tuned),
                start=first[i],
                origin=origins[i],
                personal=personal[i],
                losses=tuning.losses[i],
                curve=curves[i],
                seconds=tuning.seconds / len(numbers),
                bytes_received=self.num_bytes,
                adapter=self,
            )
            for i, own in enumerate(data)
        ]

    def _chosen(
        self, clients: Sequence[str | int] | None, examples: int | Sequence[int | None] | None
    ) -> tuple[list[int], list[int | None]]:
        """Return the positions of the clients, and how many examples each may use."""
        if isinstance(clients, str):
            raise UsageError(
                f"clients must be a list of names or positions, got {clients!r}. Write [{clients!r}].",
                code="wrong-type",
                setting="clients",
                got=clients,
            )
        if clients is None and not self.held_out:
            raise UsageError(
                f"none of the {len(self.federation)} clients is held out. Name those you want: "
                "adapt_all([client.name for client in adapter.federation]).",
                code="no-clients",
            )
        numbers = [self.position(client) for client in (self.held_out if clients is None else clients)]
        if isinstance(examples, Real | str):
            examples = expect_number(examples, "examples", whole=True)
        counts = [examples] * len(numbers) if examples is None or isinstance(examples, int) else list(examples)
        if not numbers or len(counts) != len(numbers):
            raise UsageError(
                f"give at least one client, and one number of examples each; got {numbers} and {counts}.",
                code="wrong-count",
                got=len(counts),
                wanted=len(numbers),
            )
        return numbers, counts

    def _check_atlas(self, atlas: Atlas, start: Start | Tensors | None) -> None:
        """Raise UsageError if the atlas would not be used; warn if it is of other clients."""
        if start != "nearest":
            raise UsageError(
                "atlas= (--atlas) is for start='nearest' (--start nearest) only; give both, or neither.",
                code="settings-conflict",
            )
        warn_of_other_run(atlas, self.run.resolved, stacklevel=4)

    def _tuning(self, settings: AdaptSettings, data: Sequence[ResidentData], seed: int) -> Tuning:
        bench, augment, batch_size = self.runner.bench, settings.augment, settings.batch_size
        if augment == "run":
            augment = run_augment(self.run) if bench.personal else None
        if batch_size is None:
            batch_size = self.run.resolved["training"]["batch_size"]
        optimizer = self.algorithm.optimizer.adapting(settings.lr, settings.min_lr)
        algorithm = replace(self.runner.algorithm, optimizer=optimizer)
        work = LocalWork(steps=settings.steps, batch_size=batch_size, augment=augment, compile=settings.compile)
        return Tuning(bench, self.buffers, algorithm, data, work=work, rounds=settings.rounds, seed=seed)

    def _tune(
        self, tuning: Tuning, settings: AdaptSettings, numbers: Sequence[int], first: Sequence[Tensors]
    ) -> tuple[list[Tensors], list[dict[int, ClientScore]]]:
        """Return the clients' own values after the last round, and their scores by round, where asked for."""
        curves: list[dict[int, ClientScore]] = [{} for _ in numbers]
        personal, every = list(first), settings.evaluate_every
        for turn in range(1, settings.rounds + 1) if self.runner.bench.personal else ():
            personal = tuning.round(turn, personal)
            if every is not None and turn % every == 0:
                for number, own, curve in zip(numbers, personal, curves, strict=True):
                    curve[turn] = self.score(number, own)
        return personal, curves

    def _warn_of_idle(self, tuning: Tuning) -> None:
        if not self.runner.bench.personal:
            return
        idle = [own.name for own, count in zip(tuning.clients, tuning.num_steps, strict=True) if not count]
        if idle:
            warnings.warn(
                f"nothing was tuned for {first_few(idle)}: with one training example there is no batch that the norms "
                "of the network can take. Bring at least two.",
                stacklevel=3,
            )

    def keep(self, results: Sequence[Adapted]) -> Path:
        """Write what adapting took and gave into the run's folder, for its report; the newest of a client counts."""
        records = {record["client"]: record for record in self.run.adapted}
        records |= {one.client: {"round": self.round, **one.describe()} for one in results}
        path = self.run.folder / ADAPTED
        atomic_write(path, json.dumps(list(records.values()), indent=1).encode())
        return path

    def score(self, client: int, personal: Tensors) -> ClientScore:
        """Return how the shared model does with these values on a client's test part, as in the run's evaluations."""
        with repeatable(self.device):
            return self.runner.score_client({}, self.buffers, personal, client)

    def personalised(self, personal: Tensors) -> nn.Module:
        """Return a copy of the network with a client's own parameters, for inference."""
        self.runner.bench.load({}, self.buffers, personal)
        return self.algorithm.bake(self.runner.bench.model).eval().requires_grad_(False)

    def position(self, client: str | int | None) -> int:
        """Return a client's position, by its name or number; it may be left out where there is only one."""
        names = [c.name for c in self.federation]
        if client is None and len(names) == 1:
            return 0
        if client is None:
            raise UsageError(
                f"name one of the {len(names)} clients. Held out are {', '.join(self.held_out) or 'none'}.",
                code="missing-option",
                option="client",
                known=names,
            )
        return self.federation.position(client)

    def _training_data(self, number: int, examples: int | None, seed: int) -> ResidentData:
        client = self.federation.clients[number]
        size = len(client.train)
        if size == 0 or len(client.test) == 0:
            raise DataError(
                f"client {client.name} has examples to train on: {size}, to test on: {len(client.test)}; adapting "
                "needs both. Bring more of its examples, or name the other clients only (--client, clients=).",
                code="too-few-examples",
                client=client.name,
                got=size,
            )
        if examples is None:
            return self.runner.data(number)
        if not 1 <= examples <= size:
            raise UsageError(
                f"examples must be in [1, {size}], as client {client.name} has {size}; got {examples}.",
                code="out-of-range",
                setting="examples",
                client=client.name,
                got=examples,
            )
        order = torch.from_numpy(numpy_generator(seed, "adapting", client.name).permutation(size))
        few = replace(client, train=client.train[order[:examples].sort().values.to(self.device)])
        clients = (*self.federation.clients[:number], few, *self.federation.clients[number + 1 :])
        federation = replace(self.federation, clients=clients)
        return ResidentData(federation, number, channels_last=self.runner.channels_last)

    def _start(self, start: Start | Tensors | None, number: int, atlas: Atlas | None) -> tuple[Tensors, str]:
        """Return a client's first values, and in words where they come from."""
        bench, split = self.runner.bench, self.algorithm.split
        own = self.known.get(number, {}) if self._has_runs_clients else {}
        if start is None:
            start = "own" if own else "mean" if split.newcomers_take_the_mean and self.known else "initial"
        if isinstance(start, str) and start not in STARTS:
            raise unknown_name("start", start, STARTS)
        if not bench.personal:
            return {}, "nothing is personal"
        if not isinstance(start, str):
            expect(start, Mapping, "start must be a name, or tensors by name", "Write {name: tensor}.")
            for name, values in start.items():
                expect(values, Tensor, f"start[{name!r}] must be a tensor", "Write torch.tensor(...).")
            found, origin = self._placed(start), "given"
        elif start == "initial":
            first = split.initial_personal(bench.model, self.runner.data(number).place)
            found = {name: first.get(name, bench.initial[name]) for name in sorted(bench.personal)}
            origin = "as the run's clients began"
        elif start == "mean":
            found = mean_personal({c: {PERSONAL: values} for c, values in self.known.items()})
            origin = f"the mean of {len(self.known)} that trained"
        elif start == "nearest":
            found, origin = self._nearest(number, atlas)
        else:
            found = own if start == "own" else next(iter(self.known.values()), {})
            origin = "its own, trained" if start == "own" else "the first that trained"
        wanted = {name: bench.initial[name].shape for name in sorted(bench.personal)}
        if {name: tensor.shape for name, tensor in found.items()} != wanted:
            if isinstance(start, str):
                client = self.federation.clients[number].name
                why = f"client {client} did not train in" if start == "own" else "no client trained in"
                do = "Leave start out, or begin as the run's clients did: start='initial' (--start unit)."
                raise UsageError(
                    f"start={start!r}: {why} {self.run.folder}, so there are no such values. {do}",
                    code="value-missing",
                    got=start,
                )
            raise UsageError(
                f"start={sorted(start)}: give tensors in the network's shapes of {first_few(list(wanted))}.",
                code="wrong-shape",
                got=sorted(start),
            )
        return found, origin

    def _nearest(self, number: int, atlas: Atlas | None) -> tuple[Tensors, str]:
        """Return the values of the trained client that an atlas has nearest to this one."""
        if atlas is None:
            raise UsageError(
                "start='nearest' needs atlas= (--atlas FILE), as `fedatlas map` or make_atlas makes one.",
                code="missing-option",
                option="atlas",
            )
        names = [client["name"] for client in self.run.resolved["federation"]["clients"]]
        trained = {names[c]: values for c, values in self.known.items()}
        own = self.federation.clients[number].name
        for name, cosine in atlas.neighbours(own, len(atlas)):
            if name in trained:
                return trained[name], f"the nearest that trained, {name} (cosine {cosine:.2f})"
        raise UsageError(
            f"start='nearest': the atlas holds none of the {len(trained)} clients that trained in {self.run.folder}. "
            "Make the atlas from the run's federation.",
            code="client-missing",
            path=str(self.run.folder),
        )

    def _placed(self, tensors: Tensors) -> Tensors:
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}


def adapt(
    run: Run,
    client: str | int | None = None,
    *,
    data: Federation | Dataset | None = None,
    algorithm: Algorithm | None = None,
    model: Model | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Adapted:
    """Adapt a run's model to one client; ``settings`` are those of ``Adapter.adapt``.

    To adapt to several clients, open the run once: ``adapter = Adapter(run)``, then ``adapter.adapt(name)`` for each.
    """
    return Adapter(run, data=data, algorithm=algorithm, model=model, device=device).adapt(client, **settings)


def _rest(network: nn.Module, shared: Tensors, algorithm: Algorithm, run: Run) -> None:
    """Put the shared parameters into the network, and keep them from being trained."""
    personal = algorithm.split.personal_parameters(network)
    parameters = {k: p for k, p in network.named_parameters() if p.requires_grad and k not in personal}
    if {k: p.shape for k, p in parameters.items()} != {k: t.shape for k, t in shared.items()}:
        raise UsageError(
            f"{run.folder} holds the parameters of another network; give model= as it was in training.",
            code="settings-differ",
            path=str(run.folder),
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shared[name])
            parameter.requires_grad_(False)

"""Adapt a run's model to one client: tune what is personal, and keep the rest fixed.

What is personal is the algorithm's choice: an embedding, the norms, the head, or nothing. More can be asked for.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedatlas.adapting.comparing import Folds, Verdict
from fedatlas.adapting.examples import chosen_clients, with_few
from fedatlas.adapting.models import GroupModels, freeze_shared
from fedatlas.adapting.placement import Joining, Placer, need_labels_used, need_placed
from fedatlas.adapting.result import Adapted, AdaptingStopped, Tuned
from fedatlas.adapting.settings import AdaptSettings, Tune
from fedatlas.adapting.starts import STARTS, Start, Starts, check_atlas
from fedatlas.adapting.tuning import Tuning, warn_of_idle
from fedatlas.adapting.widening import has_head, widened
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.placing import Placement
from fedatlas.client.data import ResidentData
from fedatlas.client.runner import ClientRunner
from fedatlas.client.work import LocalWork
from fedatlas.config.reopen import run_algorithm, run_augment, run_federation, run_metrics, run_network
from fedatlas.data import Dataset, Federation
from fedatlas.errors import UsageError, expect, unknown_name
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.objective import CrossEntropy
from fedatlas.parts.types import ClientScore, Tensors
from fedatlas.runs.manifest import add_file
from fedatlas.runs.run import ADAPTED, Run
from fedatlas.seeds import Seeds, repeatable
from fedatlas.training.model import Model
from fedatlas.training.progress import Progress, make_progress
from fedatlas.training.train import fingerprint


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
        freeze_shared(network, checkpoint.state, self.algorithm, run)
        self.federation = federation.to(self.device)
        # Cross-entropy alone: what other terms need, such as a server's notes, a client on its own does not get.
        tuning = replace(self.algorithm, objective=(CrossEntropy(),))
        self.runner = ClientRunner(
            tuning,
            network.to(self.device),
            self.federation,
            LocalWork(),
            self.seeds.batches,
            metrics=run_metrics(run, federation.data.task),
        )
        self.models = GroupModels(self.runner.bench.model, checkpoint.state)
        """The models of the run's groups."""
        same = fingerprint(federation) == run.resolved["federation"]["fingerprint"]
        self.starts = Starts(run, checkpoint, self.runner, has_runs_clients=same)
        """Where newcomers' own values begin."""
        self.placer = Placer(run, self.runner, self.models, self.starts)
        """Finds the groups of newcomers."""
        self._widened: dict[Tune, Adapter] = {}

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

    @property
    def usual_tune(self) -> Tune:
        """What is tuned unless it is said: what is personal; where nothing is, the head, or all if none is known."""
        if self.runner.bench.personal:
            return "personal"
        return "head" if has_head(self.runner.bench.model) else "all"

    def widened(self, tune: Tune | None) -> Adapter:
        """Return this adapter over a network of which more is a client's own."""
        if tune is None or tune == "personal":
            return self
        if tune not in self._widened:
            wider = copy.copy(self)
            wider.runner = widened(self.runner, self.models.state, tune)
            wider.models = GroupModels(wider.runner.bench.model, self.models.state)
            self._widened[tune] = wider
        return self._widened[tune]

    def place(
        self,
        client: str | int | None = None,
        *,
        atlas: Atlas | None = None,
        examples: int | None = None,
        labels: bool = True,
        seed: int | None = None,
    ) -> Placement:
        """Return the group that a client's training part belongs to, or why it cannot be told.

        By the vector where there is an atlas that knows its noise: ``atlas``, or the one in the run's folder. Otherwise
        by the lowest loss under the groups' models.

        Args:
            client: a name or a position.
            atlas: with a summary, of the run's clients.
            examples: look at this many training examples only.
            labels: whether their labels may be looked at.
            seed: of the choice of examples; None is the run's.
        """
        number = self.position(client)
        few = with_few(self.federation, number, examples, self.seeds.batches if seed is None else seed)
        return self.placer.place(few, number, atlas=atlas, labels=labels)

    def adapt(self, client: str | int | None = None, *, examples: int | None = None, **settings: Any) -> Adapted:
        """Tune on one client's training part; the settings are those of ``adapt_all``."""
        return self.adapt_all([self.position(client)], examples=examples, **settings)[0]

    def adapt_all(
        self,
        clients: Sequence[str | int] | None = None,
        settings: AdaptSettings | None = None,
        *,
        start: Start | Tensors | None = None,
        atlas: Atlas | None = None,
        examples: int | Sequence[int | None] | None = None,
        group: int | Placement | Sequence[int | Placement] | None = None,
        progress: Progress | bool | None = False,
        **changes: Any,
    ) -> list[Adapted]:
        """Tune on each client's training part; test before and after on its test part.

        Clients do not hear of each other; where the network allows it, their batches pass through it together. All is
        in float32, as tests are.

        Where groups of clients have a model each, a client uses that of its group. A newcomer is placed as ``place``
        does; if its examples cannot tell, it has the model of all clients, with a warning. Raise DataError where there
        is none, or with ``start="group"``.

        Tuning is compared with what it began from by folds of each client's training part, and the better is kept:
        ``Adapted.kept`` says which and ``Adapted.why`` why; ``compare=False`` keeps what was tuned.

        Args:
            clients: names or positions; None is all that were held out. One may be there twice.
            settings: what, how long and how fast; ``changes`` are fields of ``AdaptSettings``, such as ``tune``,
                ``rounds`` and ``lr``.
            start: ``own`` values of a client that trained; ``initial``, as clients of the run began; the ``mean`` of
                those that trained; those of the ``first`` that did; of the ``nearest`` in ``atlas`` that did; or
                tensors by name. ``group`` places every client, and begins with the mean of its group; nothing is tuned
                unless ``rounds`` or ``tune`` is given. None is the client's own if it trained, else what the algorithm
                gives newcomers.
            atlas: for ``nearest``, where the client must be in it (``atlas.add_client`` puts one there), and for
                ``group``, where it need not.
            examples: use this many training examples only, or one number for each client; fewer are among more.
            group: the clients' groups, where they are known, by number or as ``place`` returns them.
            progress: whether to show how many rounds are done, as ``train`` does.

        Ctrl-C raises ``AdaptingStopped``, a KeyboardInterrupt that holds the results of the clients that were tuned,
        some of them by fewer rounds.
        """
        if start == "group" and settings is None and "tune" not in changes:
            changes = {"rounds": 0, **changes}
        settings = (settings or AdaptSettings()).changed(changes)
        if isinstance(start, str) and start not in STARTS:
            raise unknown_name("start", start, STARTS)
        numbers, counts = chosen_clients(self, clients, examples)
        if atlas is not None:
            check_atlas(atlas, self.run, start)
        seed = self.seeds.batches if settings.seed is None else settings.seed
        few = [with_few(self.federation, *own, seed) for own in zip(numbers, counts, strict=True)]
        given = self.placer.given(len(numbers), group)
        places = start == "group"
        found = [
            self.placer.find(own, few[i], number, places=places, atlas=atlas, labels=settings.labels)
            for i, (number, own) in enumerate(zip(numbers, given, strict=True))
        ]
        need_labels_used(found, labels=settings.labels)
        may_share = self.models.state.has_common_model and not places
        need_placed([own for own in found if isinstance(own, Placement)], self.models if may_share else None)
        joining = [Joining(number, self._data(number, few[i]), found[i]) for i, number in enumerate(numbers)]
        settings = replace(settings, tune=settings.tune or (self.usual_tune if settings.rounds else "personal"))
        return self.widened(settings.tune)._adapt_joining(joining, settings, (start, atlas), seed, progress)

    def _adapt_joining(
        self,
        joining: Sequence[Joining],
        settings: AdaptSettings,
        start: tuple[Start | Tensors | None, Atlas | None],
        seed: int,
        progress: Progress | bool | None,
    ) -> list[Adapted]:
        """Adapt the models that serve some clients, one model after another."""
        results: dict[int, Adapted] = {}
        serving = [self.models.serving(own.found) for own in joining]
        rounds = settings.rounds if self.runner.bench.personal else 0
        done, turns = 0, rounds * len(set(serving))
        shown = make_progress(progress if turns else False, "adapting", turns)

        def count_round() -> None:
            nonlocal done
            done += 1
            shown.advance(done, {})

        try:
            with shown:
                for chosen in dict.fromkeys(serving):
                    where = [i for i, own in enumerate(serving) if own == chosen]
                    self.models.load(chosen)
                    found = self._adapt_group([joining[i] for i in where], settings, start, seed, count_round)
                    results |= zip(where, found.results, strict=True)
                    if found.stopped:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise AdaptingStopped([results[i] for i in sorted(results)]) from None
        return [results[i] for i in range(len(joining))]

    def _adapt_group(
        self,
        joining: Sequence[Joining],
        settings: AdaptSettings,
        start: tuple[Start | Tensors | None, Atlas | None],
        seed: int,
        count_round: Callable[[], None],
    ) -> Tuned:
        """Adapt the model that is in the network to the clients that use it."""
        group, numbers = self.models.group, [own.number for own in joining]
        starts = [self.starts.find(own.start(start[0]), own.number, group=group, atlas=start[1]) for own in joining]
        more = self.models.values(self.runner.bench.personal)
        first = [{**more, **values} for values, _ in starts]
        data = [own.data for own in joining]
        tunes = bool(self.runner.bench.personal) and settings.rounds > 0
        tuning = self._tuning(settings, data, seed)
        compared = data if tunes and settings.compare else []
        # A fold trains on four fifths, which are a batch too where all are hardly one. Nothing of it leaves the client.
        smaller = replace(settings, least_batch=1)
        folds = Folds(compared, first, seed, lambda own: self._tuning(smaller, own, seed))
        before = [self.score(number, own, group) for number, own in zip(numbers, first, strict=True)]
        personal, curves, stopped = self._tune(tuning, folds, settings, numbers, first, count_round)
        if tunes:
            warn_of_idle(tuning)
        found = folds.verdicts(self.runner, self.models.buffers, stopped=stopped)
        verdicts = found or [Verdict()] * len(joining)
        tuned = self.runner.bench.parameters.values() if tunes else ()
        results = [
            Adapted(
                client=own.data.name,
                domain=own.data.client.kind,
                group=group,
                placement=own.placement,
                before=before[i],
                after=self.score(numbers[i], personal[i], group),
                num_examples=own.data.num_examples if tunes or own.placement is not None else 0,
                num_steps=tuning.num_steps[i],
                num_tuned=sum(parameter.numel() for parameter in tuned),
                tune=settings.tune or "personal",
                start=first[i],
                origin=self.models.origin(starts[i]) if more else starts[i][1],
                personal=personal[i] if verdicts[i].kept == "after" else first[i],
                kept=verdicts[i].kept,
                why=verdicts[i].why,
                gain=verdicts[i].gain,
                losses=tuning.losses[i],
                curve=curves[i],
                seconds=(tuning.seconds + folds.seconds) / len(numbers),
                bytes_received=self.models.num_bytes(group, all_groups=own.tried_all),
                adapter=self,
            )
            for i, own in enumerate(joining)
        ]
        return Tuned(results, stopped)

    def _tuning(self, settings: AdaptSettings, data: Sequence[ResidentData], seed: int) -> Tuning:
        bench, augment, batch_size = self.runner.bench, settings.augment, settings.batch_size
        if augment == "run":
            augment = run_augment(self.run) if bench.personal else None
        if batch_size is None:
            batch_size = self.run.resolved["training"]["batch_size"]
        optimizer = self.algorithm.optimizer.adapting(settings.lr, settings.min_lr)
        algorithm = replace(self.runner.algorithm, optimizer=optimizer)
        work = LocalWork(
            steps=settings.steps,
            batch_size=batch_size,
            least_batch=settings.least_batch,
            augment=augment,
            compile=settings.compile,
        )
        # Where nothing is tuned, the schedule of the learning rate still needs a round.
        rounds = max(settings.rounds, 1)
        return Tuning(bench, self.models.buffers, algorithm, data, work=work, rounds=rounds, seed=seed)

    def _tune(
        self,
        tuning: Tuning,
        folds: Folds,
        settings: AdaptSettings,
        numbers: Sequence[int],
        first: Sequence[Tensors],
        count_round: Callable[[], None],
    ) -> tuple[list[Tensors], list[dict[int, ClientScore]], bool]:
        """Return the clients' own values after the last round, their scores by round, and whether Ctrl-C ended it."""
        curves: list[dict[int, ClientScore]] = [{} for _ in numbers]
        personal, every = list(first), settings.evaluate_every
        for turn in range(1, settings.rounds + 1) if self.runner.bench.personal else ():
            try:
                personal = tuning.round(turn, personal)
                folds.round(turn)
            except KeyboardInterrupt:
                if turn == 1:
                    raise
                return personal, curves, True
            count_round()
            if every is not None and turn % every == 0:
                for number, own, curve in zip(numbers, personal, curves, strict=True):
                    curve[turn] = self.score(number, own, self.models.group)
        return personal, curves, False

    def keep(self, results: Sequence[Adapted]) -> Path:
        """Write what adapting took and gave into the run's folder, for its report; the newest of a client counts."""
        records = {record["client"]: record for record in self.run.adapted}
        records |= {one.client: {"round": self.round, **one.describe()} for one in results}
        add_file(self.run.folder, ADAPTED, json.dumps(list(records.values()), indent=1).encode())
        return self.run.folder / ADAPTED

    def score(self, client: int, personal: Tensors, group: int | None = None) -> ClientScore:
        """Return how a group's model does with these values on a client's test part, as in the run's evaluations."""
        self.models.load(group)
        with repeatable(self.device):
            return self.runner.score_client({}, self.models.buffers, personal, client)

    def personalised(self, personal: Tensors, group: int | None = None) -> nn.Module:
        """Return a copy of the network with a group's model and a client's own parameters, for inference."""
        self.models.load(group)
        self.runner.bench.load({}, self.models.buffers, personal)
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

    def _data(self, number: int, few: Federation) -> ResidentData:
        if few is self.federation:
            return self.runner.data(number)
        return ResidentData(few, number, channels_last=self.runner.channels_last)


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

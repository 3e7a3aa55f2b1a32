"""Where the personal values of a client begin that is adapted to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.provenance import warn_of_other_run
from fedatlas.client.model import PERSONAL, branch_of
from fedatlas.client.runner import ClientRunner
from fedatlas.client.scoring import mean_personal
from fedatlas.data.dataset import first_few
from fedatlas.errors import UsageError, expect, unknown_name
from fedatlas.parts.types import GROUP, Tensors
from fedatlas.runs.checkpoint import Checkpoint
from fedatlas.runs.run import Run

Start = Literal["own", "initial", "mean", "first", "nearest", "group"]
STARTS = ("own", "initial", "mean", "first", "nearest", "group")


class Starts:
    """The first values of a run's newcomers, from those of the clients that trained."""

    def __init__(self, run: Run, checkpoint: Checkpoint, runner: ClientRunner, *, has_runs_clients: bool) -> None:
        self.run, self.runner, self.has_runs_clients = run, runner, has_runs_clients
        self.state = checkpoint.state
        memories = {
            c: branch_of(own, "" if self.state.group(c) is None else GROUP)
            for c, own in sorted(checkpoint.clients.items())
        }
        self.known = {c: self._placed(own[PERSONAL]) for c, own in memories.items() if PERSONAL in own}
        """The own parameters of the clients that trained."""

    def find(
        self, start: Start | Tensors | None, number: int, *, group: int | None = None, atlas: Atlas | None = None
    ) -> tuple[Tensors, str]:
        """Return a client's first values, and in words where they come from; ``group`` is the one that serves it."""
        bench, split = self.runner.bench, self.runner.algorithm.split
        own = self.known.get(number, {}) if self.has_runs_clients else {}
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
        elif start == "group":
            found, origin = self._group(number, group)
        elif start == "initial":
            found, origin = self._initial(number), "as the run's clients began"
        elif start == "mean":
            found, origin = _mean(self.known), f"the mean of {len(self.known)} that trained"
        elif start == "nearest":
            found, origin = self._nearest(number, atlas)
        else:
            found = own if start == "own" else next(iter(self.known.values()), {})
            origin = "its own, trained" if start == "own" else "the first that trained"
        self._check(found, start, number)
        return found, origin

    def _initial(self, number: int) -> Tensors:
        bench = self.runner.bench
        first = self.runner.algorithm.split.initial_personal(bench.model, self.runner.data(number).place)
        return {name: first.get(name, bench.initial[name]) for name in sorted(bench.personal)}

    def _group(self, number: int, group: int | None) -> tuple[Tensors, str]:
        """Return what the algorithm gives newcomers, from the clients of the newcomer's group."""
        members = {c: values for c, values in self.known.items() if self.state.group(c) == group}
        if members and self.runner.algorithm.split.newcomers_take_the_mean:
            return _mean(members), f"the mean of {len(members)} that trained in its group"
        return self._initial(number), "as the run's clients began"

    def _nearest(self, number: int, atlas: Atlas | None) -> tuple[Tensors, str]:
        """Return the values of the trained client that an atlas has nearest to this one."""
        if atlas is None:
            raise UsageError(
                "start='nearest' needs atlas= (--atlas FILE), as `fedatlas map` or make_atlas makes one.",
                code="missing-option",
                option="atlas",
            )
        names = self.run.client_names
        trained = {names[c]: values for c, values in self.known.items()}
        own = self.runner.federation.clients[number].name
        if not bool(atlas.half()[atlas.rows([own])].any()):
            raise UsageError(
                f"start='nearest': client {own!r} has a zero vector in the atlas, so every other client is as near. "
                "Use an atlas of its data, such as feature-average; head_weights knows only clients that trained.",
                code="zero-vector",
                client=own,
            )
        for name, cosine in atlas.neighbours(own, len(atlas)):
            if name in trained:
                return trained[name], f"the nearest that trained, {name} (cosine {cosine:.2f})"
        raise UsageError(
            f"start='nearest': the atlas holds none of the {len(trained)} clients that trained in {self.run.folder}. "
            "Make the atlas from the run's federation.",
            code="client-missing",
            path=str(self.run.folder),
        )

    def _check(self, found: Tensors, start: Start | Tensors, number: int) -> None:
        """Raise UsageError if these are not values of the network's personal parameters."""
        bench = self.runner.bench
        wanted = {name: bench.initial[name].shape for name in sorted(bench.personal)}
        if {name: tensor.shape for name, tensor in found.items()} == wanted:
            return
        if isinstance(start, str):
            client = self.runner.federation.clients[number].name
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

    def _placed(self, tensors: Tensors) -> Tensors:
        device = self.runner.federation.data.inputs.device
        return {name: tensor.to(device) for name, tensor in tensors.items()}


def check_atlas(atlas: Atlas, run: Run, start: Start | Tensors | None) -> None:
    """Raise UsageError if the atlas would not be used; warn if it is of other clients."""
    if start not in ("nearest", "group"):
        raise UsageError(
            "atlas= (--atlas) is for start='nearest' or 'group' (--start) only; give both, or neither.",
            code="settings-conflict",
        )
    warn_of_other_run(atlas, run.resolved, stacklevel=4)


def _mean(known: Mapping[int, Tensors]) -> Tensors:
    return mean_personal({c: {PERSONAL: values} for c, values in known.items()})

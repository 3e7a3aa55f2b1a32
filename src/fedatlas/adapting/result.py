"""What adapting a run's model to one client took and gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedatlas.adapting.export import about_network, export_onnx, save_personalised
from fedatlas.atlas.placing import Placement
from fedatlas.client.runner import ClientRunner
from fedatlas.data.federation import Federation
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import Metric
from fedatlas.parts.types import ClientScore, Tensors
from fedatlas.runs.run import Run
from fedatlas.training.metrics import plain


class OpenedRun(Protocol):
    """The run that was adapted, with its network and its clients; an ``Adapter`` is one."""

    @property
    def run(self) -> Run:
        """The run."""
        ...

    @property
    def algorithm(self) -> Algorithm:
        """The run's algorithm."""
        ...

    @property
    def federation(self) -> Federation:
        """The clients that can be adapted to."""
        ...

    @property
    def runner(self) -> ClientRunner:
        """What trains and tests these clients."""
        ...

    @property
    def embedding_name(self) -> str | None:
        """The name of the client's embedding among the personal parameters, where it has one."""
        ...

    def personalised(self, personal: Tensors, group: int | None = None) -> nn.Module:
        """Return a client's network with plain layers."""
        ...

    def position(self, client: str | int | None) -> int:
        """Return a client's position by its name."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapted:
    """A model that was adapted to one client, with its scores and the cost of tuning."""

    client: str
    domain: str | None
    group: int | None = None
    """The group whose model it is; None for the model of all clients."""
    placement: Placement | None = None
    """How the group was found, where the client was placed."""
    before: ClientScore
    """On the client's test part, with the values it started from."""
    after: ClientScore
    """With those that were tuned, whichever are kept; so are ``losses``, ``curve`` and ``num_steps`` of the tuning."""
    kept: Literal["before", "after"] = "after"
    """Whose values are kept in ``personal``, for ``model()`` and ``save()``, decided by folds of the training part."""
    why: str = ""
    """Why these, in words; nothing where it was not compared."""
    gain: tuple[float, float] | None = None
    """What an example of the folds gains by tuning, and half of its interval of 95 %."""
    num_examples: int
    """Training examples that were used."""
    num_steps: int
    num_tuned: int
    """How many numbers were tuned."""
    tune: str = "personal"
    """What was asked to be tuned, beside what the algorithm keeps personal."""
    start: Tensors
    origin: str
    """Where the start came from, in words."""
    personal: Tensors
    """The client's own parameters and running statistics: those that are kept."""
    losses: list[float]
    """Mean training loss of each round."""
    curve: dict[int, ClientScore]
    """Scores by round, where asked for."""
    seconds: float
    """Seconds of tuning, without tests; of clients that were tuned together, each has an equal part."""
    bytes_received: int
    """The size of the shared model, which the client must have."""
    bytes_sent: int = 0
    """Nothing leaves the client."""
    adapter: OpenedRun

    def __repr__(self) -> str:
        tuned = f"{self.num_tuned:,} numbers tuned on {self.num_examples:,} examples"
        scores = f"{self.metric.name} {self.before.main:.3f} to {self.after.main:.3f}"
        group = "" if self.group is None else f"group {self.group}, "
        return f"Adapted({self.client!r}, {group}{scores}, {tuned})"

    @property
    def best(self) -> ClientScore:
        """The best score among those measured after tuning began; optimistic, as it is on test data."""
        choose = max if self.metric.higher_is_better else min
        return choose([*self.curve.values(), self.after], key=lambda score: score.main)

    @property
    def metric(self) -> Metric:
        """The task's main metric, by which scores are compared."""
        return self.adapter.runner.metrics[0]

    @property
    def embedding(self) -> Tensor | None:
        """The client's embedding, where it has one."""
        name = self.adapter.embedding_name
        return None if name is None else self.personal[name]

    def model(self) -> nn.Module:
        """Return the adapted network for inference: plain layers, in evaluation mode, nothing to train."""
        return self.adapter.personalised(self.personal, self.group)

    def save(self, path: Path | str) -> Path:
        """Write the adapted network as safetensors; ``load_personalised`` reads it, without the run."""
        return save_personalised(self.model(), self._about(), path)

    def export_onnx(self, path: Path | str) -> Path:
        """Write the adapted network as ONNX; needs the extra ``onnx``."""
        data = self.adapter.runner.data(self.adapter.position(self.client))
        inputs = data.batch(torch.zeros(2, dtype=torch.int64, device=data.labels.device), None).inputs
        return export_onnx(self.model().cpu(), inputs.cpu(), self._about(), path)

    def _about(self) -> dict[str, Any]:
        about = about_network(self.adapter.run, self.adapter.algorithm)
        return {"client": self.client, "group": self.group, **about}

    def _further(self) -> dict[str, Any]:
        """Return all metrics before and after, where the run has more than two."""
        if len(self.after.values) == 2:
            return {}
        scores = {"before": self.before, "after": self.after}
        return {"metrics": {when: {k: plain(v) for k, v in own.values.items()} for when, own in scores.items()}}

    def describe(self) -> dict[str, Any]:
        """Return the results as plain values, for a record."""
        own = ("client", "domain", "origin", "tune", "num_examples", "num_steps", "num_tuned", "losses", "seconds")
        kept = ("kept", "why", "gain")
        return {
            "algorithm": self.adapter.algorithm.name,
            "group": self.group,
            "placement": None if self.placement is None else self.placement.to_dict(),
            **{name: getattr(self, name) for name in (*own, *kept, "bytes_received", "bytes_sent")},
            **{f"{self.metric.name}_{when}": getattr(self, when).main for when in ("before", "after", "best")},
            **{f"loss_{when}": getattr(self, when).loss for when in ("before", "after")},
            **self._further(),
            "num_tested": self.after.num_examples,
            "curve": {number: score.main for number, score in self.curve.items()},
            "embedding": None if self.embedding is None else self.embedding.tolist(),
        }


class Tuned(NamedTuple):
    """The clients of one model."""

    results: list[Adapted]
    stopped: bool
    """Whether Ctrl-C ended their tuning early."""


class AdaptingStopped(KeyboardInterrupt):
    """Ctrl-C while clients were tuned. ``results`` are those of the clients that were tuned, if only by some rounds."""

    def __init__(self, results: Sequence[Adapted]) -> None:
        super().__init__(f"{len(results)} clients were tuned")
        self.results = list(results)

"""Following a run while it trains: callbacks at each round, at each evaluation and at the end.

``train(..., callbacks=[...])`` calls them between the rounds that ``play`` yields. They see what the run's records
hold, they change no bit of the training, and only ``stop`` ends it.
"""

from __future__ import annotations

import csv
import importlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedatlas.errors import UsageError, unknown_name
from fedatlas.registry import Registry
from fedatlas.training.rounds import Round

LOGGERS: Registry[Callable[..., Any]] = Registry("logger", "logger", "fedatlas.training")
"""Callbacks that write figures somewhere, by name, as ``--log`` takes them."""
logger = LOGGERS.register
PACKAGES = {
    "tensorboard": ("torch.utils.tensorboard", "tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow-skinny", "mlflow"),
}
"""By logger, the module that it writes with, the package that holds it, and the extra that installs it."""


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """What a callback is told before the first round."""

    folder: Path
    """The run's folder."""
    resolved: Mapping[str, Any]
    """Every setting as it is used."""
    round: int
    """The last round that was played before; 0 for a new run."""
    metric: str
    """The metric by which rounds are compared."""
    higher_is_better: bool
    """Whether more of it is better."""


class Callback:
    """Follows a run. Override what you need."""

    def at_start(self, beginning: Beginning) -> None:
        """Take note of the run before its first round, or before the round where it goes on."""

    def at_round(self, found: Round) -> None:
        """Take note of a finished round: its state, record, assignments and uploads."""

    def at_evaluation(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Take note of an evaluated round; ``metrics`` are those of ``evaluation`` in ``rounds.jsonl``."""

    def at_end(self) -> None:
        """Take note of the end, also where an error or Ctrl-C ended the run."""

    @property
    def stop(self) -> bool:
        """Whether the run shall end after this round; it can be resumed."""
        return False


@dataclass
class EarlyStopping(Callback):
    """Ends a run when a metric has not become better for ``patience`` evaluations.

    The metric is that of the clients' test parts, so the round where it ends is chosen on test data. Hold out clients
    for a figure that nothing was chosen by.
    """

    patience: int = 5
    metric: str | None = None
    """None is the one by which rounds are compared, often accuracy."""
    least: float = 0.0
    """By how much it must become better to count."""
    waited: int = field(default=0, init=False)
    best: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise UsageError(
                f"patience must be at least 1, got {self.patience}.",
                code="out-of-range",
                setting="patience",
                got=self.patience,
            )

    def at_start(self, beginning: Beginning) -> None:
        """Begin to wait."""
        lower = beginning.resolved["training"].get("lower_is_better", ["loss"])
        name = self.metric or beginning.metric
        self._name, self._sign, self.waited, self.best = name, -1.0 if name in lower else 1.0, 0, None

    def at_evaluation(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Count the evaluations since the best one."""
        if self._name not in metrics:
            raise unknown_name("metric to stop by", self._name, [k for k, v in metrics.items() if isinstance(v, float)])
        value = self._sign * float(metrics[self._name])
        better = self.best is None or value > self.best + self.least
        self.waited = 0 if better else self.waited + 1
        self.best = value if better else self.best

    @property
    def stop(self) -> bool:
        """Whether there was no better evaluation for long enough."""
        return self.waited >= self.patience


class Logger(Callback):
    """A callback that writes each figure of each round: the training loss, and all numbers of an evaluation."""

    def at_start(self, beginning: Beginning) -> None:
        """Open the log."""
        self.beginning = beginning
        self._last: dict[str, float] = {}
        self.open(beginning)

    def at_round(self, found: Round) -> None:
        """Write the round's figures."""
        losses = found.record.losses
        row = {"train_loss": math.fsum(losses.values()) / len(losses)} if losses else {}
        self.write(found.record.round, {**row, **self._last})
        self._last = {}

    def at_evaluation(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Keep the figures until the round is told."""
        self._last = figures(metrics)

    def at_end(self) -> None:
        """Close the log."""
        self.close()

    def open(self, beginning: Beginning) -> None:
        """Open the log; figures of later rounds than ``beginning.round`` will be written again."""

    def write(self, round: int, row: Mapping[str, float]) -> None:
        """Write the figures of a round."""

    def close(self) -> None:
        """Close the log."""


@logger("csv")
@dataclass
class CsvLog(Logger):
    """One line a round in metrics.csv in the run's folder."""

    path: Path | None = None

    def open(self, beginning: Beginning) -> None:
        """Read the rows of earlier rounds, which stay."""
        self._file = Path(self.path) if self.path is not None else beginning.folder / "metrics.csv"
        self._rows: list[dict[str, Any]] = []
        if beginning.round and self._file.exists():
            with self._file.open(newline="", encoding="utf-8") as file:
                self._rows = [row for row in csv.DictReader(file) if int(row["round"]) <= beginning.round]

    def write(self, round: int, row: Mapping[str, float]) -> None:
        """Write the file again with another row: later rounds may bring new columns."""
        self._rows.append({"round": round, **row})
        titles = list(dict.fromkeys(title for own in self._rows for title in own))
        partial = self._file.with_suffix(".partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, titles, restval="")
            writer.writeheader()
            writer.writerows(self._rows)
        partial.replace(self._file)


@logger("tensorboard")
@dataclass
class TensorBoardLog(Logger):
    """Event files in the folder tensorboard of the run; `tensorboard --logdir runs` shows them (extra tensorboard)."""

    folder: Path | None = None

    def open(self, beginning: Beginning) -> None:
        """Open an event file; on a resume, what was logged of later rounds is hidden."""
        tensorboard = need(*PACKAGES["tensorboard"])
        where = self.folder or beginning.folder / "tensorboard"
        self._writer = tensorboard.SummaryWriter(str(where), purge_step=beginning.round + 1)

    def write(self, round: int, row: Mapping[str, float]) -> None:
        """Write the figures as scalars."""
        for name, value in row.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


@logger("wandb")
@dataclass
class WandbLog(Logger):
    """A Weights & Biases run; offline, in the run's folder, unless WANDB_MODE says otherwise (extra wandb)."""

    project: str = "fedatlas"

    def open(self, beginning: Beginning) -> None:
        """Begin a run there."""
        wandb = need(*PACKAGES["wandb"])
        self._run = wandb.init(
            project=self.project,
            dir=str(beginning.folder),
            name=beginning.folder.name,
            config=settings_of(beginning.resolved),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def write(self, round: int, row: Mapping[str, float]) -> None:
        """Log the figures at the round's number."""
        self._run.log(dict(row), step=round)

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


@logger("mlflow")
@dataclass
class MlflowLog(Logger):
    """An MLflow run; in the store mlruns of the run's folder, unless MLFLOW_TRACKING_URI is set (extra mlflow)."""

    experiment: str = "fedatlas"

    def open(self, beginning: Beginning) -> None:
        """Begin a run there."""
        mlflow = need(*PACKAGES["mlflow"])
        # Newer versions ask to be told that a folder is meant, and not a database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        store = os.environ.get("MLFLOW_TRACKING_URI") or (beginning.folder / "mlruns").resolve().as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=store)
        known = self._client.get_experiment_by_name(self.experiment)
        number = known.experiment_id if known is not None else self._client.create_experiment(self.experiment)
        self._run = self._client.create_run(number, run_name=beginning.folder.name).info.run_id
        for name, value in settings_of(beginning.resolved).items():
            self._client.log_param(self._run, name, str(value)[:500])

    def write(self, round: int, row: Mapping[str, float]) -> None:
        """Log the figures at the round's number."""
        for name, value in row.items():
            self._client.log_metric(self._run, name, value, step=round)

    def close(self) -> None:
        """End the run there."""
        self._client.set_terminated(self._run)


def figures(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return all numbers of an evaluation by name; those of a domain or group are named ``domains/NAME``.

    >>> figures({"accuracy": 0.5, "domains": {"a": 0.25}, "deciles": [0.1], "worst_domain_name": "a"})
    {'accuracy': 0.5, 'domains/a': 0.25}
    """
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found |= figures(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = float(value)
    return found


def settings_of(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are plain values, by dotted names."""
    found = {"data": resolved["federation"]["data"], "algorithm": resolved["algorithm"]["name"]}
    found["model"] = resolved["model"]["name"]
    plain = {k: v for k, v in resolved["training"].items() if v is None or isinstance(v, int | float | str)}
    return found | {f"training.{key}": value for key, value in plain.items()}


def need(module: str, package: str, extra: str) -> Any:
    """Import what a logger writes with; raise UsageError that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"this log needs the package {package}; install it: pip install 'fedatlas[{extra}]'.",
            code="package-missing",
            package=package,
        ) from error


class Followers:
    """All callbacks of a run, as one; and the progress that shows it, which hears of evaluations first."""

    def __init__(self, progress: Any, callbacks: Sequence[Callback]) -> None:
        self.progress, self.callbacks = progress, list(callbacks)
        for one in self.callbacks:
            if not isinstance(one, Callback):
                raise UsageError(
                    f"a callback must be a fedatlas.Callback, got {one!r}. Subclass it, or use one of fedatlas's.",
                    code="wrong-type",
                    setting="callbacks",
                    got=one,
                )
        self._beginning: Beginning | None = None

    def expect(self, beginning: Callable[[int], Beginning]) -> None:
        """Take how the beginning is described, once the round is known from which the run goes on."""
        self._describe = beginning

    def __enter__(self) -> Followers:
        self.progress.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        for one in self.callbacks:
            one.at_end()
        self.progress.__exit__(*details)

    def start_from(self, round: int) -> None:
        """Tell where the run begins."""
        self.progress.start_from(round)
        for one in self.callbacks:
            one.at_start(self._describe(round))

    def advance(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Tell of a finished round, and of its evaluation if there was one."""
        self.progress.advance(round, metrics)
        for one in self.callbacks if metrics else ():
            one.at_evaluation(round, metrics)

    def after(self, found: Round) -> bool:
        """Tell of a finished round, and return whether one of the callbacks ends the run there."""
        for one in self.callbacks:
            one.at_round(found)
        return any(one.stop for one in self.callbacks)

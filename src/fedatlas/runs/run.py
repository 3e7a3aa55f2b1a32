"""A run is a folder with its settings, its records by round and client, and its last state.

resolved.json     every setting as it was used, the federation's fingerprint, versions
config.toml       the config that made it, if any; `fedatlas train --config` reads it
rounds.jsonl      one line per round
clients.jsonl     one line per round and client
timings.jsonl     seconds, in a separate file so that equal runs have equal records
checkpoints/      the last state, and the manifest: a checksum of every file above
adapted.json      clients that were brought in later, by `fedatlas adapt`
check.json        what `fedatlas check` found about its clients
report.html       made by `fedatlas report`
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedatlas.data.html import curve_picture, facts_table, rows_table
from fedatlas.data.task import CLASSIFICATION, find_task
from fedatlas.errors import RunFolderError
from fedatlas.parts.types import Tensors
from fedatlas.runs.checkpoint import Checkpoint, CheckpointStore
from fedatlas.runs.group_history import GroupHistory, read_groups
from fedatlas.runs.groups import serving_group
from fedatlas.runs.manifest import CHECKPOINTS, Manifest, read_manifest
from fedatlas.runs.profile import ProfileRow, profile_rows
from fedatlas.runs.schema import (
    RESOLVED,
    SHARES,
    check_run,
    figure,
    line_fault,
    own_name,
    read_adapted,
    read_lines,
    read_settings,
)

RECORDS = ("rounds.jsonl", "clients.jsonl", "timings.jsonl")
CONFIG = "config.toml"
ATLAS = "atlas.safetensors"
"""The atlas that a run made, if its config has ``[atlas] make``."""
ADAPTED = "adapted.json"
CHECK = "check.json"
NEW_ATLAS = "atlas-new.safetensors"
"""The atlas of a run that will replace the one in the folder when it begins."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run that was made, read from its folder."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        check_run(self.folder)

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """Every setting as it was used."""
        return read_settings(self.folder / RESOLVED, self._manifest)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One entry per round."""
        return self._lines("rounds.jsonl")

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """One entry per round and client."""
        return self._lines("clients.jsonl")

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        """Seconds, one entry per round."""
        return self._lines("timings.jsonl")

    @property
    def adapted(self) -> list[dict[str, Any]]:
        """One entry for each client that was brought in later."""
        return read_adapted(self.folder / ADAPTED, read_manifest(self.folder / CHECKPOINTS))

    @property
    def client_names(self) -> list[str]:
        """The names of the clients, in their order."""
        return [client["name"] for client in self.resolved["federation"]["clients"]]

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return str(self.resolved["algorithm"]["name"])

    @cached_property
    def label(self) -> str:
        """The name in tables and reports: the custom name from the config, else the algorithm's.

        docs/runs.md, Compare
        """
        return own_name(self.folder / CONFIG, self.name) or self.name

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rounds that were evaluated."""
        found = [entry for entry in self.rounds if entry.get("evaluation")]
        for entry in found:
            if not isinstance(entry["evaluation"].get(self.metric), int | float):
                raise line_fault(self.folder / RECORDS[0], entry["round"], f"lacks the {self.metric} of its evaluation")
        return found

    @property
    def last(self) -> dict[str, Any]:
        """The metrics of the last evaluation, over the clients that train, and its ``round``."""
        entry = self._evaluated()[-1]
        return {"round": entry["round"], **entry["evaluation"]}

    @property
    def best(self) -> dict[str, Any]:
        """The metrics of the evaluation with the best main metric, and its ``round``."""
        choose = max if self.higher_is_better(self.metric) else min
        entry = choose(self._evaluated(), key=lambda item: item["evaluation"][self.metric])
        return {"round": entry["round"], **entry["evaluation"]}

    @property
    def metric(self) -> str:
        """The name of the metric by which clients and rounds are compared: the task's main one, often accuracy."""
        return find_task(self.resolved["federation"].get("task", CLASSIFICATION.name)).main

    def higher_is_better(self, metric: str) -> bool:
        """Return whether more of a metric is better."""
        return metric not in self.resolved["training"].get("lower_is_better", ("loss",))

    @property
    def seconds(self) -> float:
        """Seconds that training took, evaluation and checkpoints left out."""
        return float(sum(entry["train"] for entry in self.timings))

    @cached_property
    def groups(self) -> GroupHistory | None:
        """Who shared a model with whom, what was decided and why; None where all share one without being asked."""
        return read_groups(self.resolved, self.rounds, self.clients)

    def profile(self) -> list[ProfileRow]:
        """Return the time of a round by stage, with the clients' stages if it was trained with ``profile``."""
        return profile_rows(self.timings, int(self.resolved["machine"]["workers"]))

    def parameters(self, client: str | int | None = None, *, group: int | None = None) -> Tensors:
        """Return the shared parameters and buffers of the last checkpoint.

        Where groups of clients have a model each, name a client or a group.
        """
        state = CheckpointStore(self.folder / CHECKPOINTS).load_state()
        shared, buffers = state.model(serving_group(self.folder, self.client_names, state, client, group))
        return {**shared, **buffers}

    def checkpoint(self) -> Checkpoint:
        """Return the last checkpoint."""
        return CheckpointStore(self.folder / CHECKPOINTS).load()

    def model(
        self,
        client: str | int | None = None,
        *,
        group: int | None = None,
        network: Any = None,
        algorithm: Any = None,
    ) -> nn.Module:
        """Return the trained network for inference, with a client's own parameters where the algorithm keeps any.

        Where groups of clients have a model each, it is that of the client's group, or of ``group``.
        ``network`` is needed where the model was custom: the module, or the function that makes it.
        ``algorithm`` is needed where it was not a recipe by name and builds something around the model. docs/models.md
        """
        from fedatlas.adapting.inference import trained_network  # it reads runs: a circle otherwise

        return trained_network(self, client, group=group, network=network, algorithm=algorithm)

    def prepare(self, inputs: Any) -> Tensor:
        """Return examples in the form in which the network was trained on them.

        Examples are given as ``from_arrays`` takes them; for a run on a table, as a frame or a file with its columns.
        """
        from fedatlas.adapting.inference import prepared_inputs  # it reads runs: a circle otherwise

        return prepared_inputs(self, inputs)

    def report(self, path: Path | str | None = None) -> Path:
        """Write the run's report, one self-contained HTML file, and return its path."""
        from fedatlas.report import write_report  # the report reads runs: a circle otherwise

        return write_report([self], Path(path) if path else self.folder / "report.html")

    def adapt(self, client: str | int | None = None, **options: Any) -> Any:
        """Bring in a client: tune what this run's algorithm keeps personal, and nothing else.

        Returns what ``fedatlas.adapting.adapter.adapt`` does; ``options`` are that function's.
        """
        from fedatlas.adapting.adapter import adapt  # adapting reads runs: a circle otherwise

        return adapt(self, client, **options)

    def verify(self) -> None:
        """Raise RunFolderError, with the file's name, if a file of the run was deleted, cut short or altered.

        A record of a run that was stopped may be longer than the last checkpoint; a resume cuts it back to that.
        """
        while True:
            manifest = read_manifest(self.folder / CHECKPOINTS)
            try:
                manifest.check_files(self.folder)
                for name in RECORDS:
                    manifest.check_record(name, self.folder / name)
                if manifest.server is not None:
                    CheckpointStore(self.folder / CHECKPOINTS).load(limit=0)
                return
            except RunFolderError:
                if read_manifest(self.folder / CHECKPOINTS) == manifest:  # else a running run has just saved
                    raise

    @cached_property
    def _manifest(self) -> Manifest:
        """The files of the run and their checksums, as they were when the run was opened."""
        return read_manifest(self.folder / CHECKPOINTS)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        ended = self._manifest.round >= self.resolved["training"]["rounds"]
        return read_lines(self.folder / name, self._manifest, whole=ended)

    def _evaluated(self) -> list[dict[str, Any]]:
        if not self.evaluations:
            raise RunFolderError(
                f"{self.folder} has no evaluation yet; resume the run or let it reach one.",
                code="evaluation-missing",
                path=str(self.folder),
            )
        return self.evaluations

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.name}, {len(self.rounds)} rounds)"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {
            "folder": self.folder,
            "data": self.resolved["federation"]["data"],
            "clients": len(self.resolved["federation"]["clients"]),
            "model": self.resolved["model"]["name"],
            "rounds": f"{len(self.rounds)} of {self.resolved['training']['rounds']}",
            "training": f"{self.seconds:.1f} s",
        }
        if self.evaluations:
            for title, found in (("last", self.last), ("best", self.best)):
                facts[f"{title} {self.metric}"] = f"{figure(self.metric, found[self.metric])} (round {found['round']})"
        return facts_table(f"Run of {self.label}", facts) + self._shown_results()

    def _shown_results(self) -> str:
        """Return the metric by round as a picture, and the clients that are served worst."""
        if not self.evaluations:
            return ""
        name, rounds = self.metric, [entry["round"] for entry in self.evaluations]
        values = [entry["evaluation"][name] for entry in self.evaluations]
        curve = curve_picture(rounds, values, about=f"{name} by round", percent=name in SHARES)
        last = [own for own in self.clients if own["round"] == rounds[-1] and own.get(name) is not None]
        last.sort(key=lambda own: own[name], reverse=not self.higher_is_better(name))
        rows = [(own["client"], figure(name, own[name])) for own in last]
        return curve + rows_table(("worst served", name), rows, most=5)


def find_runs(folder: Path) -> list[Run]:
    """Return the run in a folder, or the runs in the folders inside it, as `compare` leaves them."""
    inside = [] if (folder / RESOLVED).exists() else sorted(folder.glob(f"*/{RESOLVED}"))
    return [Run(path.parent) for path in inside] or [Run(folder)]

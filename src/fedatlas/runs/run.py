"""A run is a folder with its settings, its records by round and client, and its last state.

resolved.json     every setting as it was used, the federation's fingerprint, versions
config.toml       the config that made it, if any; `fedatlas train --config` reads it
rounds.jsonl      one line per round
clients.jsonl     one line per round and client
timings.jsonl     seconds, in a separate file so that equal runs have equal records
checkpoints/      the last state, with checksums
adapted.json      clients that were brought in later, by `fedatlas adapt`
report.html       made by `fedatlas report`
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedatlas.data.html import facts_table
from fedatlas.errors import RunFolderError
from fedatlas.parts.types import Tensors
from fedatlas.runs.checkpoint import Checkpoint, CheckpointStore
from fedatlas.runs.groups import serving_group
from fedatlas.runs.profile import ProfileRow, profile_rows
from fedatlas.runs.schema import RESOLVED, check_run, own_name, read_adapted, read_lines, read_settings

RECORDS = ("rounds.jsonl", "clients.jsonl", "timings.jsonl")
CONFIG = "config.toml"
ATLAS = "atlas.safetensors"
"""The atlas that a run made, if its config has ``[atlas] make``."""
ADAPTED = "adapted.json"
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
        return read_settings(self.folder / RESOLVED)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """One entry per round."""
        return read_lines(self.folder / "rounds.jsonl")

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """One entry per round and client."""
        return read_lines(self.folder / "clients.jsonl")

    @cached_property
    def timings(self) -> list[dict[str, Any]]:
        """Seconds, one entry per round."""
        return read_lines(self.folder / "timings.jsonl")

    @property
    def adapted(self) -> list[dict[str, Any]]:
        """One entry for each client that was brought in later."""
        return read_adapted(self.folder / ADAPTED)

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

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rounds that were evaluated."""
        return [entry for entry in self.rounds if entry.get("evaluation")]

    @property
    def last(self) -> dict[str, Any]:
        """The metrics of the last evaluation, over the clients that train, and its ``round``."""
        entry = self._evaluated()[-1]
        return {"round": entry["round"], **entry["evaluation"]}

    @property
    def best(self) -> dict[str, Any]:
        """The metrics of the evaluation with the highest accuracy, and its ``round``."""
        entry = max(self._evaluated(), key=lambda item: item["evaluation"]["accuracy"])
        return {"round": entry["round"], **entry["evaluation"]}

    @property
    def seconds(self) -> float:
        """Seconds that training took, evaluation and checkpoints left out."""
        return float(sum(entry["train"] for entry in self.timings))

    def profile(self) -> list[ProfileRow]:
        """Return the time of a round by stage, with the clients' stages if it was trained with ``profile``."""
        return profile_rows(self.timings, int(self.resolved["machine"]["workers"]))

    def parameters(self, client: str | int | None = None, *, group: int | None = None) -> Tensors:
        """Return the shared parameters and buffers of the last checkpoint.

        Where groups of clients have a model each, name a client or a group.
        """
        state = CheckpointStore(self.folder / "checkpoints").load_state()
        shared, buffers = state.model(serving_group(self.folder, self.client_names, state, client, group))
        return {**shared, **buffers}

    def checkpoint(self) -> Checkpoint:
        """Return the last checkpoint."""
        return CheckpointStore(self.folder / "checkpoints").load()

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
                facts[f"{title} accuracy"] = f"{found['accuracy']:.1%} (round {found['round']})"
        return facts_table(f"Run of {self.label}", facts)


def find_runs(folder: Path) -> list[Run]:
    """Return the run in a folder, or the runs in the folders inside it, as `compare` leaves them."""
    inside = [] if (folder / RESOLVED).exists() else sorted(folder.glob(f"*/{RESOLVED}"))
    return [Run(path.parent) for path in inside] or [Run(folder)]

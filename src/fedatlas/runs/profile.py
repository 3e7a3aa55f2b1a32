"""The time of a round by stage: always of the server, on request of the clients too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

STAGES = {
    "sampling": "choose who takes part",
    "surveys": "ask clients before they train",
    "training": "clients train",
    "weighting": "weigh the answers",
    "aggregation": "turn changes into a change",
    "memory": "keep what clients remember",
    "evaluation": "test",
    "records": "write records",
    "checkpoints": "write checkpoints",
}
SERVER = ("sampling", "weighting", "aggregation", "memory", "records")
"""The server's side of a round."""
CLIENT_STAGES = {
    "data": "make batches ready",
    "gradients": "forward and backward",
    "steps": "optimizer",
    "rest": "load, begin and finish",
}


class ProfileRow(NamedTuple):
    """One line of a profile."""

    stage: str
    what: str
    seconds: float
    """A round."""
    share: float
    """Of the round."""


def profile_rows(timings: Sequence[Mapping[str, Any]], workers: int) -> list[ProfileRow]:
    """Return where the time of a mean round went; the first round is left out where there are more.

    Clients' stages follow under training, as seconds of the clock: ``waiting`` is the time in which workers had no
    work or received data.
    """
    timings = [entry for entry in timings if "stages" in entry]
    timings = timings[1:] or timings
    if not timings:
        return []
    mean = {stage: sum(t["stages"].get(stage, 0.0) for t in timings) / len(timings) for stage in STAGES}
    whole = sum(mean.values()) or 1.0
    inside = {s: sum(t.get("clients", {}).get(s, 0.0) for t in timings) / len(timings) / workers for s in CLIENT_STAGES}
    rows = []
    for stage, seconds in mean.items():
        if seconds == 0:
            continue
        rows.append(ProfileRow(stage, STAGES[stage], seconds, seconds / whole))
        if stage == "training" and any(inside.values()):
            lines = {**inside, "waiting": max(0.0, seconds - sum(inside.values()))}
            about = {**CLIENT_STAGES, "waiting": "workers idle, messages"}
            rows += [ProfileRow(f"  {s}", about[s], took, took / whole) for s, took in lines.items()]
    rows.append(ProfileRow("round", "", whole, 1.0))
    server = sum(mean[stage] for stage in SERVER)
    rows.append(ProfileRow("server's side", ", ".join(SERVER), server, server / whole))
    return rows

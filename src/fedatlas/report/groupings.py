"""The ways to group the clients of a page: by a run's models, by a check or an atlas, by domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.verdict import judge
from fedatlas.report.findings import Findings
from fedatlas.report.members import Members
from fedatlas.report.served import Served
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.group_history import Trial
from fedatlas.runs.run import Run

MOST_TOLD = 6
"""Groups that a sentence names."""
TRAINED = {"common": "the common model", "rival": "a rival of it", "groups": "their group's model"}
ALIKE = "Clients of one group do not differ beyond noise."


def groupings_block(
    members: Members, atlas: Atlas | None, findings: Findings | None, served: Sequence[Served], shown: np.ndarray
) -> list[dict[str, Any]]:
    """Return the groupings for the page, those of a run's models first."""
    found = []
    for own in served:
        if own.alike and (models := model_groups(own.alike[0])) is not None:
            about = "Clients of one group share a model; those in none use the model of all."
            found.append(_grouping(f"run/{own.group.label}", f"models of {own.group.label}", about, models, shown))
    alike = _alike(members, atlas, findings)
    if alike is not None:
        found.append(_grouping(*alike, shown))
    kinds = list(dict.fromkeys(kind for kind in members.domains if kind is not None))
    if kinds:
        place = {kind: i for i, kind in enumerate(kinds)}
        of = [-1 if kind is None else place[kind] for kind in members.domains]
        about = (
            "As the data say." if members.kind == "domain" else "As the partition made them; no algorithm sees them."
        )
        found.append(_grouping("domain", f"{members.kind}s", about, of, shown) | {"names": kinds})
    return found


def model_groups(run: Run) -> list[int] | None:
    """Return the group whose model each client of a run uses, -1 for the model of all; None where all share one."""
    store = CheckpointStore(run.folder / "checkpoints")
    if not store.exists():
        return None
    state = store.load_state()
    if not state.groups:
        return None
    found = (state.group(client) for client in range(len(run.client_names)))
    return [-1 if group is None else group for group in found]


def why_groups(served: Served) -> list[str]:
    """Return why clients share models as they do: what was decided, what trials showed, and what they cost."""
    history = served.alike[0].groups if served.alike else None
    if history is None:
        return []
    said = [history.reason] if history.reason else []
    if history.level != "all":
        said.append(f"Each group has its own {history.level}; all other parameters are shared.")
    said += [_told(trial, i == 0) for i, trial in enumerate(history.trials)]
    if history.served:
        said.append(f"After round {len(history.served)}, {_count(history.count)} in use.")
    if history.extra_work > 0:
        times = ", ".join(
            f"{word} {history.trained[key]:,}" for key, word in TRAINED.items() if history.trained.get(key)
        )
        said.append(f"Cost: clients trained {history.extra_work:.0%} more often than once a round ({times} times).")
    return said


def _told(trial: Trial, first: bool) -> str:
    """Return what a trial showed, in a sentence; the first one explains its figure."""
    shown = sorted(range(len(trial.scores)), key=lambda group: -trial.scores[group])[:MOST_TOLD]
    scores = ", ".join(f"group {group} {trial.scores[group]:.1f}" for group in shown)
    rest = f" and {len(trial.scores) - len(shown)} more" if len(trial.scores) > len(shown) else ""
    left = len(trial.left)
    result = "no group left" if not left else "all groups left" if left == len(trial.scores) else _left(trial.left)
    about = " by a model for the group, as a multiple of what chance usually gives" if first else ""
    return f"Trial that ended with round {trial.round}: {result} the common model. Gain{about}: {scores}{rest}."


def _left(groups: Sequence[int]) -> str:
    names = ", ".join(str(group) for group in groups[:MOST_TOLD])
    more = f" and {len(groups) - MOST_TOLD} more" if len(groups) > MOST_TOLD else ""
    return f"group{'s' * (len(groups) > 1)} {names}{more} left"


def _count(models: int) -> str:
    return f"{models} model{'s are' if models > 1 else ' is'}"


def _alike(members: Members, atlas: Atlas | None, findings: Findings | None) -> tuple[str, str, str, list[int]] | None:
    """Return the groups of clients that do not differ beyond noise, by a check or else by an atlas."""
    if findings is not None and findings.groups:
        return "check", "groups by the check", ALIKE, [findings.groups.get(name, -1) for name in members.names]
    if atlas is None or atlas.summary is None:
        return None
    own = dict(zip(atlas.names, judge(atlas.summary, atlas.names).groups.tolist(), strict=True))
    return "verdict", "groups of the atlas", ALIKE, [own.get(name, -1) for name in members.names]


def _grouping(key: str, title: str, about: str, of: Sequence[int], shown: np.ndarray) -> dict[str, Any]:
    return {"key": key, "title": title, "about": about, "of": [int(of[i]) for i in shown], "names": None}

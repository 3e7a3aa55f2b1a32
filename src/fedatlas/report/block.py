"""The data of a page, gathered from runs, a federation, an atlas and a diagnosis. docs/page.md describes them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from fedatlas.algorithms.registry import ALGORITHMS
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.report.commands import act_block, advice_block, run_options
from fedatlas.report.disclosed import disclosed_by
from fedatlas.report.findings import Findings
from fedatlas.report.groupings import groupings_block, why_groups
from fedatlas.report.groups import Group, distinct_runs, group_runs, same_split, split_note
from fedatlas.report.members import (
    Members,
    choose_shown,
    members_of_atlas,
    members_of_diagnosis,
    members_of_federation,
    members_of_run,
    sample_note,
)
from fedatlas.report.reasons import find_reasons, suspect_positions, worst_served
from fedatlas.report.served import Served, differences, frames_for, metric_block
from fedatlas.report.settings import settings_block
from fedatlas.report.share import shareable
from fedatlas.report.sources import plane_methods, source_block
from fedatlas.report.strips import NOTHING, Previews, previews_of, read_previews, rows_block, strips_block
from fedatlas.report.vectors import (
    Vectors,
    atlas_vectors,
    check_vectors,
    describe_noise,
    label_vectors,
    plain_vectors,
    run_atlas_of,
)
from fedatlas.runs.previews import pictured
from fedatlas.runs.run import CONFIG, Run
from fedatlas.runs.schema import read_config_file

SCHEMA = 1
SEED = 0
"""Of planes and samples: the same runs give the same page."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What a page is about; at least one of the first four is given."""

    runs: Sequence[Run] = ()
    federation: Federation | None = None
    atlas: Atlas | None = None
    diagnosis: Diagnosis | None = None
    given: str | None = None
    """The options that name the data on the command line, such as ``--data heart``."""
    config: str | None = None
    """The config that they make, as TOML."""
    title: str | None = None

    def members(self) -> Members:
        """Return the clients."""
        if self.runs:
            return members_of_run(self.runs[0])
        if self.federation is not None:
            return members_of_federation(self.federation)
        if self.atlas is not None:
            return members_of_atlas(self.atlas)
        if self.diagnosis is not None:
            return members_of_diagnosis(self.diagnosis)
        raise UsageError("a report needs at least one run, got none.", code="data-empty", what="runs")

    def findings(self) -> Findings | None:
        """Return what a check found: the given one, or one that was kept with a run on the same split."""
        if self.diagnosis is not None:
            return Findings.of(self.diagnosis)
        kept = (Findings.read(run.folder) for run in (same_split(self.runs) if self.runs else ()))
        return next((found for found in kept if found is not None), None)

    def data(self) -> tuple[str, str, str]:
        """Return the data's name, their kind and how they were partitioned."""
        if self.runs:
            known = self.runs[0].resolved["federation"]
            return known["data"], known["kind"], known["partition"]
        if self.federation is not None:
            return self.federation.name, self.federation.data.kind, self.federation.partition
        if self.diagnosis is not None:
            return self.diagnosis.data, "", ""
        made = str(self.atlas.provenance.get("federation", "an atlas")) if self.atlas is not None else ""
        data, _, partition = made.partition(": ")
        return data, "", partition


def data_block(subject: Subject, *, share: bool = False) -> dict[str, Any]:
    """Return the data of a page as plain values for JSON; with ``share``, such that the page may be handed on."""
    if subject.runs:
        subject = Subject(**{**vars(subject), "runs": tuple(distinct_runs(subject.runs))})
    members, findings = subject.members(), subject.findings()
    groups = group_runs(subject.runs) if subject.runs else []
    print_ = subject.runs[0].resolved["federation"]["fingerprint"] if subject.runs else ""
    served = [Served.read(group, print_, members.names) for group in groups]
    worst = worst_served(served)
    suspects = suspect_positions(members, findings.suspects if findings else ())
    shown = choose_shown(members, worst, suspects)
    names = [members.names[i] for i in shown]
    previews = _previews(subject, members)
    atlas = _used_atlas(subject, members)
    vectors = _vectors(subject, members, previews, atlas)
    columns, classes = members.block(shown)
    data, kind, partition = subject.data()
    given = subject.given or run_options(subject.runs)
    people = (*findings.suspects, *findings.different) if findings else ()
    points = vectors[0].points[shown] if vectors else None
    metric = metric_block(served)
    frames = frames_for(len(shown), len(served), shares=metric["percent"])
    block = {
        "schema": SCHEMA,
        "made_by": f"fedatlas {version('fedatlas')}",
        "title": subject.title or _title(data, groups),
        "data": data,
        "kind": kind,
        "partition": partition,
        "target": _target(subject),
        "metric": metric,
        "shared": False,
        "noise": describe_noise(None if atlas is None else atlas[1].provenance),
        "classes": classes,
        "sample": sample_note(members, shown),
        "note": split_note(subject.runs) if subject.runs else "",
        "clients": columns,
        "sources": [
            source_block(*own, shown, seed=SEED, methods=plane_methods(i, len(shown))) for i, own in enumerate(vectors)
        ],
        "groupings": groupings_block(members, atlas[1] if atlas else None, findings, served, shown),
        "check": None if findings is None else findings.block(names, shared=share),
        "algorithms": [
            own.block(members.names, shown, frames, members.kind)
            | {
                "about": _about(own.group.runs[0].name),
                "disclosed": disclosed_by(own.group.runs[0]),
                "why_groups": [] if share else why_groups(own),
            }
            for own in served
        ],
        "differences": differences(served),
        "fixed_answers": members.fixed_answers(shown, _tested(subject, previews)) if served else None,
        "reasons": find_reasons(members, shown, worst, people, points),
        "pictures": strips_block(previews, shown, [*suspects, *worst]),
        "rows": rows_block(previews, shown, [*suspects, *worst]),
        "advice": advice_block(subject.runs, groups, findings, members, given),
        "act": act_block(subject.runs, members, given, subject.config),
        "settings": settings_block(groups) if groups else None,
    }
    return shareable(block) if share else block


def _about(name: str) -> str:
    """Return what a recipe of the library does, in a sentence; nothing of another's."""
    entry = ALGORITHMS.entries.get(name)
    return "" if entry is None else entry.summary.replace("``", "")


def _target(subject: Subject) -> str | None:
    """Return the name of what is predicted, where the config says it: the column of a table."""
    tables = read_config_file(subject.runs[0].folder / CONFIG) if subject.runs else {}
    data = (tables or tomllib.loads(subject.config or "")).get("data")
    named = data.get("label") if isinstance(data, dict) else None
    return named if isinstance(named, str) else None


def _title(data: str, groups: Sequence[Group]) -> str:
    names = [group.label for group in groups]
    if not names:
        return f"Clients: {data}"
    said = (
        f"{len(names)} algorithms"
        if len(names) > 3
        else " and ".join([", ".join(names[:-1]), names[-1]][-len(names) :])
    )
    return f"{said} on {data}"


def _previews(subject: Subject, members: Members) -> Previews:
    if subject.runs:
        return read_previews(subject.runs[0])
    if subject.federation is not None:
        return previews_of(subject.federation, pictured(members.domains))
    return NOTHING


def _tested(subject: Subject, previews: Previews) -> np.ndarray | None:
    """Return how many test examples of each class clients have, where that is known."""
    own = subject.federation
    if previews.tested is not None or own is None or not own.data.task.has_classes:
        return previews.tested
    return np.stack([own.label_counts(i, "test").int().numpy() for i in range(len(own))])


def _used_atlas(subject: Subject, members: Members) -> tuple[str, Atlas] | None:
    """Return the atlas of these clients: the given one, or the first that a run made or used."""
    if subject.atlas is not None:
        return "atlas", subject.atlas
    found = (run_atlas_of(run) for run in subject.runs)
    known = set(members.names)
    return next((("the run's atlas", own) for own in found if own is not None and known & set(own.names)), None)


def _vectors(subject: Subject, members: Members, previews: Previews, atlas: tuple[str, Atlas] | None) -> list[Vectors]:
    """Return the sources of vectors: the atlas that was used, what a check compared, then statistics of the data."""
    found = [] if atlas is None else atlas_vectors(atlas[1], members.names, atlas[0])
    compared = None if subject.diagnosis is None else check_vectors(subject.diagnosis, members.names)
    found += [] if compared is None else [compared]
    if previews.vectors is not None and len(members) > 1:
        found.append(plain_vectors(previews.vectors, subject.data()[1]))
    if not found and members.labels is not None and members.labels.shape[1] > 1 and len(members) > 1:
        found.append(label_vectors(members.labels))
    return found

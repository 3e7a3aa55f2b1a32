"""What clients' summaries show: the shift, the groups, wrong labels, and who is rare but right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.doctor.labels import NOISY, LabelFindings, find_wrong_labels
from fedatlas.atlas.doctor.suspect import Suspect
from fedatlas.atlas.floor import LEAST
from fedatlas.atlas.summary import WIDTH, Summary, most_directions
from fedatlas.atlas.verdict import Finding, Verdict, judge

UNLIKE = "unlike-others"
LARGE = 3
"""Clients that some group must have before a client without a group is called unlike the others."""


MOST_NAMED = 3


class Examination(NamedTuple):
    """What clients' summaries show."""

    inputs: Finding
    label_shares: Finding
    labelling: Finding
    groups: tuple[int, ...]
    suspects: tuple[Suspect, ...]
    """Clients with wrong labels."""
    different: tuple[Suspect, ...]
    """Clients unlike all others, and rare ones of which it cannot be told whether their labels are wrong."""
    remarks: tuple[str, ...]
    """What cannot be told apart."""


def examine(summary: Summary | None, names: Sequence[str], classes: Sequence[str]) -> Examination:
    """Return what the summary of all clients shows; None is one of examples that say nothing about noise."""
    if summary is None:
        unknown = Finding(False, 0.0, "There are too few examples to tell.")
        return Examination(unknown, unknown, unknown, (0,) * len(names), (), (), ())
    first = judge(summary, names, classes)
    labels = find_wrong_labels(summary, first.groups, names, classes)
    verdict, groups = _without_suspects(summary, names, classes, first, labels)
    lone = _lone(names, groups, labels)
    return Examination(
        inputs=verdict.inputs,
        label_shares=first.label_shares,
        labelling=_labelling(verdict.labelling, labels, names, len(classes)),
        groups=tuple(groups.tolist()),
        suspects=tuple(labels.suspects[i] for i in sorted(labels.suspects)),
        different=(*(labels.untold[i] for i in sorted(labels.untold)), *lone),
        remarks=(*labels.remarks, *_remarks(verdict, lone, summary)),
    )


def _without_suspects(
    summary: Summary, names: Sequence[str], classes: Sequence[str], first: Verdict, labels: LabelFindings
) -> tuple[Verdict, Tensor]:
    """Return the verdict on the clients with right labels, and groups of all: a wrong label is not another input.

    A suspect goes with those that it was grouped with at first; where none of them is left, it has its own group.
    """
    left = torch.tensor([i for i in range(len(names)) if i not in labels.suspects])
    if not labels.suspects or len(left) < 2:
        return first, first.groups
    verdict = judge(summary.take(left), [names[i] for i in left.tolist()], classes)
    groups = torch.full((len(names),), -1)
    groups[left] = verdict.groups
    count = verdict.count
    own: dict[int, int] = {}
    for i in sorted(labels.suspects):
        home = int(first.groups[i])
        mates = Counter(groups[(first.groups == home) & (groups >= 0) & (groups < verdict.count)].tolist())
        if mates:
            groups[i] = mates.most_common(1)[0][0]
        else:
            groups[i] = own.setdefault(home, count + len(own))
    return verdict, groups


def _labelling(found: Finding, labels: LabelFindings, names: Sequence[str], num_classes: int) -> Finding:
    """Return the finding about labelling, with the clients that name classes differently."""
    renaming = [own.client for own in labels.suspects.values() if own.kind != NOISY]
    renaming += [names[i] for i in labels.disputed]
    if not renaming:
        return found
    who = f"{', '.join(renaming[:5])}{' and others' if len(renaming) > 5 else ''}"
    said = f"The two labels look exchanged at {who}." if num_classes == 2 else f"Other names for classes at {who}."
    strength = max(found.strength, labels.renamed / num_classes)
    return replace(found, found=True, strength=strength, evidence=f"{found.evidence} {said}" if found.found else said)


def _lone(names: Sequence[str], groups: Tensor, labels: LabelFindings) -> tuple[Suspect, ...]:
    """Return the clients that are alone in their group, where others have one; suspects are left out."""
    sizes = torch.bincount(groups)
    if int(sizes.max()) < LARGE:
        return ()
    alone = [i for i in range(len(names)) if int(sizes[groups[i]]) == 1 and i not in labels.suspects]
    said = "its examples look unlike all other clients' of the same class"
    return tuple(
        Suspect(names[i], UNLIKE, said, f"what is special about {names[i]}", said.replace("its", "your")) for i in alone
    )


def _remarks(verdict: Verdict, lone: Sequence[Suspect], summary: Summary) -> tuple[str, ...]:
    said = []
    if verdict.inputs.found:
        said.append("Whether a client with other inputs names classes otherwise.")
    elif _few_directions(summary):
        said.append("Some differences of inputs: there are too few examples.")
    if lone:
        who = ", ".join(own.client for own in lone[:MOST_NAMED]) + (" and others" if len(lone) > MOST_NAMED else "")
        said.append(f"Noisy labels at {who}: no other client is alike.")
    if bool((summary.counts < LEAST).any()):
        said.append("Swapped names of classes that a client lacks.")
    return tuple(said)


def _few_directions(summary: Summary) -> bool:
    """Return whether examples were too few to compare them in as many directions as they have."""
    freedom = int(summary.counts.sum() - (summary.counts > 0).sum())
    seen, kept = summary.whitening.basis.shape
    return kept < min(seen, WIDTH) and kept >= most_directions(freedom)

"""Who shares a model, from an atlas: any algorithm, with a model for each group of clients.

Groups are those of the atlas's verdict, or as many as are asked for. With ``auto``:

    one group              one model: under plain label skew, splitting harms
    labelling differs      a model for each group from the beginning: one model cannot be right for all
    inputs differ          one model; a group leaves it where a trial on held-back examples shows that it gains
    both                   the largest set of groups that label alike has one model, which they may leave after a trial;
                           each other group has its model from the beginning
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedatlas.algorithms.client2vec import open_atlas
from fedatlas.algorithms.fedavg import fedavg
from fedatlas.algorithms.registry import recipe
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.provenance import atlas_remarks
from fedatlas.atlas.verdict import Verdict
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError, expect, unknown_name
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.sharing import ByGroup, Level, One, Sharing
from fedatlas.parts.trial import ByTrial
from fedatlas.parts.types import Roster

DO = "Write grouped(fedatlas.algorithms.fedavg(), atlas)."


@recipe(changes="sharing", over="base", needs=("atlas",), uses=("group",), section="sharing", paper="fedatlas")
def grouped(
    base: Algorithm | None = None,
    atlas: Atlas | str | Path | None = None,
    *,
    groups: int | Literal["auto"] = "auto",
    members: Sequence[Sequence[str]] | None = None,
    level: Level = "all",
    pilot: int = 8,
    threshold: float = 1.3,
) -> Algorithm:
    """``base`` (FedAvg) with a model for each group of clients that an atlas shows, where that pays.

    Args:
        atlas: the atlas, or the path of the file that holds it. ``auto`` needs one of source ``class-prototypes``.
        groups: ``auto``, which may also be one group, or a number.
        members: the clients of each group by name, in place of an atlas; all others make one more group.
        level: the parameters that each group has for itself: ``all``, the ``head``, or the ``norms``.
        pilot: rounds of the late trial of groups whose inputs differ; clients train three models in each of them.
        threshold: how large t must be in a trial for a group to leave the common model.
    """
    base = base if base is not None else fedavg()
    expect(base, Algorithm, "grouped(base) must be an algorithm", DO)
    if type(base.sharing) is not One:
        raise UsageError(
            f"grouped(base) decides who shares a model, but {base.name} has {type(base.sharing).__name__} for that. "
            "Use a base in which all clients share one model.",
            code="base-unfit",
            base=base.name,
            part=type(base.sharing).__name__,
        )
    if members is not None:
        why = f"{len(members)} groups of clients were named; whether they pay was not looked into."
        sharing: Sharing = NamedGroups(groups=_by_name(members), level=level, reason=why)
        return replace(base, name="grouped" if base.name == "fedavg" else f"grouped+{base.name}", sharing=sharing)
    sharing = decide(open_atlas(atlas, "grouped(atlas)"), groups=groups, level=level, pilot=pilot, threshold=threshold)
    return replace(base, name="grouped" if base.name == "fedavg" else f"grouped+{base.name}", sharing=sharing)


def decide(
    atlas: Atlas,
    *,
    groups: int | Literal["auto"] = "auto",
    level: Level = "all",
    pilot: int = 8,
    threshold: float = 1.3,
) -> Sharing:
    """Return who shares a model, by an atlas, with the reason; the settings are those of ``grouped``."""
    if groups != "auto":
        why = f"{groups} groups were asked for; whether they pay was not looked into."
        return AtlasGroups(groups=_named(atlas, atlas.groups(groups)), level=level, atlas=atlas, reason=why)
    verdict = atlas.verdict()
    if verdict.count == 1:
        return One(reason=f"One model for all clients. {verdict.inputs.evidence}")
    members = _named(atlas, verdict.groups)
    both = verdict.labelling.found and verdict.inputs.found
    apart = _apart(verdict) if both and level == "all" else ()
    if apart and len(apart) < verdict.count - 1:
        why = (
            f"A model for each of {len(apart)} of {verdict.count} groups from the beginning: they label otherwise than "
            f"the rest. {verdict.labelling.evidence} The others share one model, which each of them leaves if a trial "
            f"of up to {pilot} rounds shows that it gains. {verdict.inputs.evidence}"
        )
        return TriedGroups(
            groups=members, level=level, pilot=pilot, threshold=threshold, apart=apart, atlas=atlas, reason=why
        )
    if verdict.labelling.found:
        why = (
            f"A model for each of {verdict.count} groups from the beginning: they label differently, so one model "
            f"cannot be right for all. {verdict.labelling.evidence}"
        )
        return AtlasGroups(groups=members, level=level, atlas=atlas, reason=why)
    why = (
        f"One model, which each of {verdict.count} groups leaves if a trial shows that it gains. A trial has up to "
        f"{pilot} rounds, in which clients train three models. {verdict.inputs.evidence}"
    )
    return TriedGroups(groups=members, level=level, pilot=pilot, threshold=threshold, atlas=atlas, reason=why)


def _apart(verdict: Verdict) -> tuple[int, ...]:
    """Return the groups that label otherwise than the rest.

    The rest are groups of which no two label differently. Of such sets, each begun with one group and filled up with
    the largest that fit, it is the one with the most clients, then the one with the most groups.
    """
    sizes = torch.bincount(verdict.groups)
    by_size = sizes.argsort(descending=True, stable=True).tolist()
    conflicts = {pair for matching in verdict.matchings for pair in (matching.groups, matching.groups[::-1])}
    best: list[int] = []
    for first in by_size:
        rest = [first]
        for group in by_size:
            if group != first and not any((group, other) in conflicts for other in rest):
                rest.append(group)
        best = max(best, rest, key=lambda own: (int(sizes[own].sum()), len(own)))
    return tuple(group for group in range(len(sizes)) if group not in best)


def _by_name(members: Sequence[Sequence[str]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for group, names in enumerate(members):
        for name in names:
            if name in found:
                raise UsageError(
                    f"grouped(members): client {name!r} is in two groups; name each client once.",
                    code="name-twice",
                    got=name,
                )
            found[name] = group
    return found


def _named(atlas: Atlas, labels: Tensor) -> dict[str, int]:
    return dict(zip(atlas.names, labels.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class _FromAtlas(ByGroup):
    """Groups of an atlas, which must have been made of the same clients."""

    atlas: Atlas

    def check_clients(self, federation: Federation) -> list[str]:
        """Return remarks; one is that the atlas was made of other clients. Raise UsageError if one is not in it."""
        self.atlas.rows([federation.clients[i].name for i in federation.training_ids])
        return [*super().check_clients(federation), *atlas_remarks(self.atlas, federation)]


@dataclass(frozen=True, kw_only=True, eq=False)
class AtlasGroups(_FromAtlas):
    """The groups of an atlas, each with its model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TriedGroups(_FromAtlas, ByTrial):
    """The groups of an atlas, which leave the common model where a trial shows that they gain."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedGroups(ByGroup):
    """Groups whose clients were named; all other clients make one more group."""

    def place(self, roster: Roster) -> Tensor:
        """Return the group of each client; who is not named is in the last."""
        rest = len(set(self.groups.values()))
        return torch.tensor([self.groups.get(client.name, rest) for client in roster])

    def num_groups(self, group_of: Tensor) -> int:
        """Return how many groups there are, with the one of those that are not named."""
        return max(super().num_groups(group_of), int(group_of.max()) + 1)

    def check_clients(self, federation: Federation) -> list[str]:
        """Return no remark; raise UsageError if a name is not a client's."""
        known = {client.name for client in federation}
        for name in self.groups:
            if name not in known:
                raise unknown_name("client in sharing.members", name, known)
        return []

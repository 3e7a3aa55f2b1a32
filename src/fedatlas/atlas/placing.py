"""Place a newcomer in one of the groups of an atlas, from a few of its examples, or say that they cannot tell.

The newcomer's mean of class k is a squared distance q from the mean of a group's clients. Noise explains a of it, the
newcomer's v plus the group's, in nu directions: those of the newcomer's noise, as ``merge`` trusts them. So

    log p(newcomer | group) = sum over its classes k of -nu_k / 2 (log a_k + q_k / a_k)

and the chance of a group is its share of the sum of p over groups. A group that lacks a class may have it anywhere: its
mean is then that of all groups, and a grows by b, the slab of ``merge``. One example of a class is enough. Without
labels an example may be of any class: its p is the mean over the classes.

A newcomer is not placed if no chance reaches 0.95, or if its group's S, as ``merge`` computes it, is below -6. Nor is
it without labels among groups that differ in nothing but the names of classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.add_client import encode_newcomer
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.floor import LEAST, noise_floor
from fedatlas.atlas.merge import STOP, Cells, Evidence, agreement, bayes_factors, cells_of, weigh_evidence
from fedatlas.atlas.summary import CELLS, Summary, client_cells
from fedatlas.atlas.verdict import judge
from fedatlas.data.federation import Federation
from fedatlas.errors import UsageError
from fedatlas.parts.types import Tensors
from fedatlas.seeds import repeatable

CERTAIN = 0.95
"""The least chance of a group that a newcomer is placed in."""
UNLIKE = 2 * STOP
"""The least S between a newcomer and its group: twice what stops a merge, as most newcomers are of a known kind."""
Refusal = Literal["uncertain", "unlike", "labelling", "no-class"]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The group of a newcomer, or why it has none."""

    client: str
    group: int | None
    """None if the newcomer is not placed."""
    certainty: float
    """The chance of the likeliest group."""
    chances: tuple[float, ...]
    """Of each group; their sum is 1."""
    num_examples: int
    """Training examples that were looked at."""
    labelled: bool
    """Whether their labels were."""
    reason: str
    """How the group was found, or why not, in words."""
    refusal: Refusal | None = None
    by: Literal["vector", "loss"] = "vector"
    """Whether the group was found by an atlas, or by the loss of each group's model."""

    @property
    def placed(self) -> bool:
        """Whether the newcomer has a group."""
        return self.group is not None

    def describe(self) -> str:
        """Return the placement in a line."""
        if self.group is None:
            return f"not placed: {self.reason}"
        examples = f"{self.num_examples} {'' if self.labelled else 'un'}labelled example{'s'[: self.num_examples != 1]}"
        how = "by its loss on" if self.by == "loss" else "from"
        return f"group {self.group} (certainty {self.certainty:.2f}, {how} {examples})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a record."""
        return {name: value for name, value in asdict(self).items() if name != "client"}


class Fit(NamedTuple):
    """How well a newcomer fits each group."""

    likelihoods: Tensor
    """float64 (groups,): log p, up to a constant."""
    scores: Tensor
    """float64 (groups,): S, by which ``merge`` would join it with the group, or not."""


def place_newcomer(
    atlas: Atlas,
    group_of: Mapping[str, int],
    federation: Federation,
    client: str,
    *,
    embeddings: Tensor | None = None,
    labels: bool = True,
) -> Placement:
    """Return the group that a client's training examples belong to.

    Args:
        atlas: with a summary, as the sources ``class-prototypes`` and ``feature-average`` make it.
        group_of: the groups of the atlas's clients, 0, 1, ..., by the clients' names. The newcomer's own is not used,
            unless it is alone there.
        federation: it has the newcomer, and need not have the others.
        client: the newcomer's name.
        embeddings: (N, D), of the federation's examples by the atlas's encoder; None encodes the newcomer's.
        labels: whether the newcomer's labels may be looked at.
    """
    summary, groups = _grouped(atlas, group_of, client)
    member = federation.clients[federation.position(client)]
    own = member.train.cpu()
    if embeddings is None:
        alone = replace(federation, clients=(replace(member, held_out=False),))
        embeddings = encode_newcomer(atlas, alone, client).examples.cpu()
    rows, named = embeddings[own], federation.data.labels.cpu()[own]
    by_class = labels and summary.labelled
    if by_class and len(named) and int(named.max()) >= summary.counts.shape[1]:
        raise UsageError(
            f"client {client!r} has the class {int(named.max())}, but the atlas has {summary.counts.shape[1]} classes. "
            "Number the newcomer's classes as the atlas's.",
            code="out-of-range",
            what="labels",
            got=int(named.max()),
            most=summary.counts.shape[1] - 1,
        )
    with repeatable(torch.device("cpu")):
        if by_class or not summary.labelled:
            fit = fit_labelled(summary, groups, rows, named if by_class else torch.zeros_like(named))
        else:
            fit = fit_unlabelled(summary, groups, rows)
    alike = _named_alike(summary, groups) if summary.labelled and not labels else []
    return _decide(fit, alike, client, len(own), by_class)


def place_cells(atlas: Atlas, group_of: Mapping[str, int], client: str, cells: Tensors) -> Placement:
    """Return the group that a client belongs to, from what it sends about its classes, as over a network.

    Args:
        atlas: with a summary, as in ``place_newcomer``.
        group_of: the groups of the atlas's clients, by name.
        client: the newcomer's name.
        cells: its cells in the directions of the summary's whitening, as ``client_cells`` makes them.
    """
    summary, groups = _grouped(atlas, group_of, client)
    with repeatable(torch.device("cpu")):
        fit = fit_cells(summary, groups, cells)
    return _decide(fit, [], client, int(cells["counts"].sum()), summary.labelled)


def fit_labelled(summary: Summary, groups: Tensor, rows: Tensor, labels: Tensor) -> Fit | None:
    """Return how well labelled examples fit each group; None if no group has any of their classes.

    Args:
        summary: of the clients in groups.
        groups: int64 (clients,).
        rows: (n, D), the newcomer's embeddings.
        labels: their classes; zeros where the summary has no classes.
    """
    return fit_cells(summary, groups, client_cells(summary.whitening, rows, labels, summary.counts.shape[1]))


def fit_cells(summary: Summary, groups: Tensor, cells: Tensors) -> Fit | None:
    """Return how well a newcomer's cells fit each group; None if no group has any of its classes."""
    sides = _sides(summary, groups, cells)
    terms = class_terms(*sides)
    counted = (sides.newcomer.counts[:, 0] > 0) & terms.known
    if not bool(counted.any()):
        return None
    near, far = terms.near[counted].sum(1), terms.far[counted].sum(1)
    return Fit(near.sum(0), agreement(near - far).sum(0))


def fit_unlabelled(summary: Summary, groups: Tensor, rows: Tensor) -> Fit | None:
    """Return how well examples of unknown classes fit each group; None if there are no examples."""
    if not len(rows):
        return None
    num_classes = summary.counts.shape[1]
    # One example of each class tells the noise of a single example.
    single = {name: getattr(summary, name).new_zeros(getattr(summary, name).shape[1:]) for name in CELLS}
    newcomer, pooled, evidence = _sides(summary, groups, {**single, "counts": torch.ones_like(single["counts"])})
    # The same number of directions for all classes, as an example may be of any.
    newcomer = newcomer._replace(anisotropy=newcomer.anisotropy.mean().expand_as(newcomer.anisotropy))
    whitened = (rows.double() - summary.whitening.centre) @ summary.whitening.basis
    examples = Cells(
        whitened.expand(num_classes, *whitened.shape),
        *(table.expand(num_classes, len(rows)) for table in newcomer[1:]),
    )
    terms = class_terms(examples, pooled, evidence)
    near, far = (own[terms.known].logsumexp(0) - math.log(int(terms.known.sum())) for own in (terms.near, terms.far))
    return Fit(near.sum(0), agreement(near - far).sum(0))


class Sides(NamedTuple):
    """A newcomer and the groups, with what a distance between them says."""

    newcomer: Cells
    groups: Cells
    evidence: Evidence


class Terms(NamedTuple):
    """log p of the newcomer's rows, by class and group: float64 (classes, rows, groups)."""

    near: Tensor
    """If the newcomer is of the group."""
    far: Tensor
    """If its class is as far from the group's as two classes are from each other."""
    known: Tensor
    """bool (classes,): whether any group has the class."""


def class_terms(newcomer: Cells, groups: Cells, evidence: Evidence) -> Terms:
    """Return log p for every class, row of the newcomer, and group."""
    has = groups.counts >= LEAST
    weights = torch.where(has, groups.precisions, 0.0)
    total = weights.sum(1)
    centre = (weights[:, :, None] * groups.means).sum(1) / total[:, None]
    means = torch.where(has[:, :, None], groups.means, centre[:, None])
    variances = torch.where(has, 1 / groups.precisions, (1 / total)[:, None] + evidence.slab)
    own = (1 / newcomer.precisions)[:, :, None]
    noise = own + variances[:, None]
    lengths = newcomer.means.square().sum(2)[:, :, None] + means.square().sum(2)[:, None]
    distances = (lengths - 2 * newcomer.means @ means.transpose(1, 2)).clamp(min=0)
    # The same number for all groups: densities over other numbers of directions cannot be compared.
    directions = (evidence.trust / newcomer.anisotropy)[:, :, None]
    near = -directions / 2 * (noise.log() + distances / noise)
    factors = bayes_factors(distances, noise, directions, evidence.slab)
    return Terms(near, near - torch.where(has[:, None], factors, 0.0), has.any(1))


def _sides(summary: Summary, groups: Tensor, cells: Tensors) -> Sides:
    floor = noise_floor(summary)
    both = summary.add(cells)
    newcomer = cells_of(both, noise_floor(both)).take(slice(len(summary), None))
    pooled = cells_of(summary, floor).pool(groups, int(groups.max()) + 1)
    return Sides(newcomer, pooled, weigh_evidence(summary, floor))


def _decide(fit: Fit | None, alike: Sequence[set[int]], client: str, num_examples: int, labelled: bool) -> Placement:
    """Return the placement that a fit allows; ``alike`` are groups that cannot be told apart without labels."""
    if fit is None:
        lacking = "no group has three examples of any of its classes" if num_examples else "it has no examples"
        return Placement(
            client=client,
            group=None,
            certainty=0.0,
            chances=(),
            num_examples=num_examples,
            labelled=labelled,
            reason=f"{lacking}.",
            refusal="no-class",
        )
    chances = fit.likelihoods.softmax(0)
    first, *others = chances.argsort(descending=True, stable=True).tolist()
    certainty = float(chances[first])
    score = float(fit.scores[first])
    twins = next((sorted(own) for own in alike if first in own), [first])
    refusal: Refusal | None = None
    reason = f"its {'class means are' if labelled else 'inputs are'} nearest to this group's (S = {score:.1f})"
    if score < UNLIKE:
        refusal, reason = "unlike", f"it is unlike every group, even the nearest, group {first} (S = {score:.0f})."
    elif len(twins) > 1:
        said = " and ".join(map(str, twins))
        refusal = "labelling"
        reason = f"groups {said} differ only in what they call their classes, which inputs do not show. Give labels."
    elif certainty < CERTAIN:
        refusal = "uncertain"
        reason = (
            f"its {num_examples} examples leave group {first} ({certainty:.2f}) and group {others[0]} "
            f"({float(chances[others[0]]):.2f}) possible. Bring more, and of more classes."
        )
    return Placement(
        client=client,
        group=first if refusal is None else None,
        certainty=certainty,
        chances=tuple(chances.tolist()),
        num_examples=num_examples,
        labelled=labelled,
        reason=reason,
        refusal=refusal,
    )


def _grouped(atlas: Atlas, group_of: Mapping[str, int], client: str) -> tuple[Summary, Tensor]:
    """Return the summary of the atlas's clients in groups, and their groups; of the newcomer only if it is alone."""
    members = {name: group_of[name] for name in atlas.names if name in group_of}
    if list(members.values()).count(members.get(client, -1)) > 1:
        del members[client]
    found, wanted = sorted(set(members.values())), sorted(set(group_of.values()))
    if not found or found != list(range(len(wanted))):
        raise UsageError(
            f"the atlas of {len(atlas)} clients must have a client of each of the groups {wanted}, numbered from 0; it "
            f"has those of groups {found}. Use the atlas that the groups were made from.",
            code="client-missing",
            got=found,
            known=wanted,
        )
    return atlas.known_summary().take(atlas.rows(list(members))), torch.tensor(list(members.values()))


def _named_alike(summary: Summary, groups: Tensor) -> list[set[int]]:
    """Return the sets of groups that differ in nothing but what they call their classes."""
    verdict = judge(summary, [str(i) for i in range(len(summary))], groups=groups)
    sets = [{group} for group in range(int(groups.max()) + 1)]
    for matching in verdict.matchings:
        if not matching.inputs_too:
            joined = [own for own in sets if own & set(matching.groups)]
            sets = [own for own in sets if own not in joined] + [set().union(*joined)]
    return sets

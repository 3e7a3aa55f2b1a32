"""Whose labels are wrong: swapped, inverted or noisy, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.atlas.doctor.inverted import find_inverted
from fedatlas.atlas.doctor.noisy import ALARMS, CAUTION, FEW_CLASSES, Fit, find_noisy
from fedatlas.atlas.doctor.reference import pairings
from fedatlas.atlas.doctor.sizes import rare_clients
from fedatlas.atlas.doctor.suspect import Suspect, beyond_chance
from fedatlas.atlas.doctor.swapped import Renaming, renaming_of
from fedatlas.atlas.summary import Summary
from fedatlas.seeds import repeatable

FEWEST_NAMED = 2
"""Others that a client's own group must have to judge its names; a third tells which of two is odd."""
MOST_NAMED = 4096
"""Classes whose names are compared, every two of them: of more, the tables would fill the memory."""
SWAPPED, INVERTED, NOISY = "labels-swapped", "labels-inverted", "labels-noisy"
UNTOLD = "labels-untold"


class LabelFindings(NamedTuple):
    """What the labels of a federation show."""

    suspects: dict[int, Suspect]
    """By position."""
    untold: dict[int, Suspect]
    """By position: rare clients whose labels look wrong, of which that cannot be told."""
    disputed: tuple[int, ...]
    """By position: clients of groups of two that use each other's names, of whom it cannot be told who is wrong."""
    renamed: int
    """The most classes that one of them names differently; 0 if none does."""
    remarks: tuple[str, ...]
    """What cannot be told apart."""


def find_wrong_labels(summary: Summary, groups: Tensor, names: Sequence[str], classes: Sequence[str]) -> LabelFindings:
    """Return the clients whose labels are probably wrong, from their summary and their groups."""
    inversion = find_inverted(summary)
    with repeatable(torch.device("cpu")):
        first = _accuse(summary, groups, set(inversion.inverted), CAUTION)
        # Once more, as wrong labels in a reference hide others.
        found = _accuse(summary, groups, {*inversion.inverted, *first.swapped, *first.noisy, *first.maybe_noisy})
    suspects = {i: _inverted(names[i], evidence, classes) for i, evidence in inversion.inverted.items()}
    suspects |= {i: _swapped(names[i], own, classes) for i, own in found.swapped.items()}
    # An effect that is turned round by nature looks as if most labels were random.
    settled = {*suspects, *inversion.untold}
    suspects |= {i: _noisy(names[i], fit, found.among[i]) for i, fit in found.noisy.items() if i not in settled}
    rare = rare_clients(summary.counts)
    untold = {i: _maybe_noisy(names[i], fit, rare.get(i)) for i, fit in found.maybe_noisy.items()}
    untold |= {i: _maybe_inverted(names[i], evidence, classes) for i, evidence in inversion.untold.items()}
    untold |= {i: _maybe_swapped(names[i], own, classes) for i, own in found.maybe_swapped.items()}
    remarks: tuple[str, ...] = ()
    if inversion.disagree is not None:
        one, other = (", ".join(names[i] for i in side) for side in inversion.disagree)
        remarks = (f"These disagree about which class is which: {one} against {other}. Who is wrong cannot be told.",)
    if summary.counts.shape[1] > MOST_NAMED:
        remarks += (f"Swapped names, of which there are more than {MOST_NAMED:,}.",)
    remarks += tuple(_disputed(names[i], names[j], own, classes) for i, j, own in found.disputed)
    renamings = [*found.swapped.values(), *(own for *_, own in found.disputed)]
    return LabelFindings(
        suspects=suspects,
        untold={i: own for i, own in untold.items() if i not in suspects},
        disputed=tuple(i for pair in found.disputed for i in pair[:2]),
        renamed=max([2 * bool(inversion.inverted), *(len(own.classes) for own in renamings)]),
        remarks=remarks,
    )


class _Accused(NamedTuple):
    swapped: dict[int, Renaming]
    noisy: dict[int, Fit]
    maybe_swapped: dict[int, Renaming]
    maybe_noisy: dict[int, Fit]
    disputed: list[tuple[int, int, Renaming]]
    """Two clients of one group, and the names of the first as the second calls them."""
    among: dict[int, bool]
    """Of every client that was compared: whether it was with its own group."""


def _accuse(summary: Summary, groups: Tensor, known: Collection[int], alarms: float = ALARMS) -> _Accused:
    """Return whose names are swapped and whose labels are noisy; no client is compared with the known suspects."""
    pairs = list(pairings(summary, groups, known))
    # Of two classes all that a renaming can be is an inversion, which has its own test.
    several = 2 < summary.counts.shape[1] <= MOST_NAMED
    named = pairings(summary, groups, known, FEWEST_NAMED) if several else ()
    rare = rare_clients(summary.counts)
    renamings = {own.client: renaming_of(own, len(summary), rare=own.client in rare) for own in named}
    swapped = {i: own for i, own in renamings.items() if own.sure}
    enough = min(FEW_CLASSES, summary.counts.shape[1])
    certain = {i for i, own in swapped.items() if not own.alone}
    judged = [own for own in pairs if own.client not in certain and len(own.seen) >= enough]
    others = [(pairing, renamings.get(pairing.client)) for pairing in judged]
    noisy, maybe_noisy = find_noisy(others, len(summary), known, alarms, rare)
    swapped = {i: own for i, own in swapped.items() if i not in noisy}
    maybe_swapped = {i: own for i, own in renamings.items() if own.untold and i not in noisy}
    disputed = _disputes(summary, groups, {*known, *swapped, *noisy}) if several else []
    among = {pairing.client: pairing.among for pairing in pairs}
    return _Accused(swapped, noisy, maybe_swapped, maybe_noisy, disputed, among)


def _disputes(summary: Summary, groups: Tensor, settled: Collection[int]) -> list[tuple[int, int, Renaming]]:
    """Return the groups of two, without a suspect, whose clients use two of each other's names."""
    alike = [(groups == group).nonzero().flatten().tolist() for group in groups.unique()]
    couples = [(both[0], both[1]) for both in alike if len(both) == 2 and not {*both} & {*settled}]
    named = pairings(summary, groups, enough=1, only={i for both in couples for i in both}) if couples else ()
    renamings = {own.client: renaming_of(own, len(summary)) for own in named if own.among}
    found = []
    for i, j in couples:
        one, other = renamings.get(i), renamings.get(j)
        if one and other and one.sure and other.sure and {*one.classes} == {(m, k) for k, m in other.classes}:
            found.append((i, j, one))
    return found


def _inverted(name: str, evidence: float, classes: Sequence[str]) -> Suspect:
    both = f"{classes[0]!r} and {classes[1]!r}"
    return Suspect(
        name,
        INVERTED,
        f"its labels look inverted: what it calls {classes[1]!r} is like what the others call {classes[0]!r}, "
        "beyond how much clients differ here",
        f"how {both} were coded at {name}, on a few examples that are known",
        f"your labels disagree with the others': {both} look exchanged",
        figure=f"log ratio = {evidence:.1f}",
    )


def _maybe_inverted(name: str, evidence: float, classes: Sequence[str]) -> Suspect:
    said = f"what it calls {classes[1]!r} is like what the others call {classes[0]!r}"
    return Suspect(
        name,
        UNTOLD,
        f"{said}, but clients differ about as much here: whether its labels are inverted cannot be told",
        f"how {classes[0]!r} and {classes[1]!r} were coded at {name}",
        f"{said.replace('it calls', 'you call')}, but clients may differ as much: whether your labels are inverted "
        "cannot be told",
        figure=f"log ratio = {evidence:.1f}",
    )


def _swapped(name: str, renaming: Renaming, classes: Sequence[str]) -> Suspect:
    moved = [(classes[k], classes[m]) for k, m in renaming.classes]
    said = ", ".join(f"its {k!r} is the others' {m!r}" for k, m in moved[:6]) + (", ..." if len(moved) > 6 else "")
    own = ", ".join(repr(k) for k, _ in moved[:6])
    # Of rare classes that have each other's names most of a difference may be in others.
    sure = beyond_chance(renaming.along)
    why = f", {sure}" if renaming.alone else f"; this explains {100 * renaming.explained:.0f} % of its difference"
    return Suspect(
        name,
        SWAPPED,
        f"its labels look swapped: {said}{why}",
        f"examples of the classes {own} at {name}",
        f"your labels disagree with the others' on the classes {own}",
        figure=f"z = {renaming.along:.0f}",
    )


def _noisy(name: str, fit: Fit, among: bool) -> Suspect:
    whom = "the others of its group" if among else "the nearest group"
    return Suspect(
        name,
        NOISY,
        f"about {100 * fit.share:.0f} % of its labels look random: its classes lie closer together and overlap more "
        f"than those of {whom}",
        f"a sample of examples at {name}, labelled once more by another person",
        f"about {100 * fit.share:.0f} % of your labels look random, spread over all classes",
    )


def _disputed(one: str, other: str, renaming: Renaming, classes: Sequence[str]) -> str:
    said = " and ".join(repr(classes[k]) for k, _ in renaming.classes[:6])
    return f"{one} and {other} disagree about which class is which of {said}. Who is wrong cannot be told."


def _maybe_noisy(name: str, fit: Fit, rare: str | None) -> Suspect:
    why = "only another group can judge it" if rare is None else rare
    return Suspect(
        name,
        UNTOLD,
        f"{why}: about {100 * fit.share:.0f} % of its labels may be random, this cannot be told",
        f"a sample of examples at {name}",
        f"{why.replace('judge it', 'judge you')}: some of your labels may be random, this cannot be told",
    )


def _maybe_swapped(name: str, renaming: Renaming, classes: Sequence[str]) -> Suspect:
    said = ", ".join(f"its {classes[k]!r} is like the others' {classes[m]!r}" for k, m in renaming.classes[:3])
    own = ", ".join(repr(classes[k]) for k, _ in renaming.classes[:3])
    return Suspect(
        name,
        UNTOLD,
        f"{said}{', ...' if len(renaming.classes) > 3 else ''}: whether names are swapped cannot be told, as it lacks "
        "some of these classes",
        f"examples of the classes {own} at {name}",
        f"your classes {own} look like other classes of the others; you lack some, so it cannot be told",
    )

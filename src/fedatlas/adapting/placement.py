"""The group of a client that joins a run: by its vector where the run has an atlas, else by its loss."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.adapting.models import GroupModels
from fedatlas.adapting.starts import Start, Starts
from fedatlas.algorithms.grouped import AtlasGroups, TriedGroups
from fedatlas.atlas.atlas import Atlas
from fedatlas.atlas.placing import Placement, place_newcomer
from fedatlas.client.data import ResidentData
from fedatlas.client.runner import ClientRunner
from fedatlas.data.federation import Client, Federation
from fedatlas.errors import DataError, UsageError
from fedatlas.parts.types import Tensors
from fedatlas.runs.groups import serving_group
from fedatlas.runs.run import ATLAS, Run
from fedatlas.seeds import repeatable


class Joining(NamedTuple):
    """A client that is adapted to."""

    number: int
    data: ResidentData
    """What it tunes on."""
    found: Placement | int | None
    """Its group: placed, known, or none, as it uses the model of all clients."""

    @property
    def placement(self) -> Placement | None:
        """How its group was found, where it was placed."""
        return self.found if isinstance(self.found, Placement) else None

    @property
    def tried_all(self) -> bool:
        """Whether it needed the models of all groups to choose one."""
        return self.placement is not None and self.placement.by == "loss"

    def start(self, asked: Start | Tensors | None) -> Start | Tensors | None:
        """Return where its own values begin: unless it is said, one that was placed begins as its group's newcomers."""
        return "group" if asked is None and self.placement is not None and self.placement.placed else asked


class Placer:
    """Finds the groups of clients that join a run."""

    def __init__(self, run: Run, runner: ClientRunner, models: GroupModels, starts: Starts) -> None:
        self.run, self.runner, self.models, self.starts, self.state = run, runner, models, starts, models.state

    @cached_property
    def group_of(self) -> dict[str, int]:
        """The group of each client of the run that is in one, also of one that still uses the model of all clients."""
        given: list[list[str]] | None = self.run.resolved["algorithm"].get("sharing", {}).get("groups")
        if given is not None:
            return {name: group for group, members in enumerate(given) for name in members}
        found = {name: self.state.group(client) for client, name in enumerate(self.run.client_names)}
        return {name: group for name, group in found.items() if group is not None}

    @cached_property
    def atlas(self) -> Atlas | None:
        """The atlas that made the groups, or the one in the run's folder; None without a summary of all groups."""
        sharing, file = self.runner.algorithm.sharing, self.run.folder / ATLAS
        if isinstance(sharing, AtlasGroups | TriedGroups):
            atlas = sharing.atlas
        elif file.exists():
            atlas = Atlas.load(file)
        else:
            return None
        groups = {self.group_of[name] for name in atlas.names if name in self.group_of}
        return atlas if atlas.summary is not None and len(groups) == len(self.state.groups) else None

    def given(
        self, count: int, group: int | Placement | Sequence[int | Placement] | None
    ) -> Sequence[int | Placement | None]:
        """Return the group that the caller gives for each of some clients, checked."""
        several = [group] * count if group is None or isinstance(group, int | Placement) else list(group)
        if len(several) != count:
            raise UsageError(
                f"give one group for all clients, or one for each; got {len(several)} groups for {count} clients.",
                code="wrong-count",
                got=len(several),
                wanted=count,
            )
        for own in several:
            number = own.group if isinstance(own, Placement) else own
            if number is not None:
                serving_group(self.run.folder, self.run.client_names, self.state, None, number)
        return several

    def find(
        self,
        given: Placement | int | None,
        few: Federation,
        number: int,
        *,
        places: bool,
        atlas: Atlas | None,
        labels: bool,
    ) -> Placement | int | None:
        """Return a client's group: given, as in the run, or placed; None for one that uses the model of all clients.

        With ``places`` a client is placed that has a group in the run, too; without it newcomers are, once a group has
        a model of its own.
        """
        if given is not None:
            return given
        if not places:
            known = self.state.group(number) if self.starts.has_runs_clients else None
            if known is not None:
                return known
            if self.state.has_common_model and (not self.models.left() or self._is_known(few.clients[number])):
                return None
        return self.place(few, number, atlas=atlas, labels=labels)

    def _is_known(self, client: Client) -> bool:
        """Return whether a client without a model of its group trained with all, or is of a group that still does."""
        return self.starts.has_runs_clients and (not client.held_out or client.name in self.group_of)

    def place(self, few: Federation, number: int, *, atlas: Atlas | None = None, labels: bool = True) -> Placement:
        """Return the group that a client's training examples belong to."""
        if not self.state.groups:
            raise UsageError(
                f"{self.run.folder} has one model for all clients, so there is no group to choose. Leave start='group' "
                "(--start group) out.",
                code="run-unfit",
                run=str(self.run.folder),
                algorithm=self.run.name,
            )
        atlas = self.atlas if atlas is None else atlas
        if atlas is not None:
            return place_newcomer(atlas, self.group_of, few, few.clients[number].name, labels=labels)
        if not labels:
            raise UsageError(
                f"{self.run.folder} keeps no atlas with a summary of all groups, so a client is placed by its loss, "
                "which needs labels. Give atlas= (--atlas FILE) with a summary, or use labels.",
                code="missing-option",
                option="atlas",
            )
        return place_by_loss(few.clients[number].name, self._losses(few, number))

    def _losses(self, few: Federation, number: int) -> Tensor:
        """Return float64 (groups, examples): a client's losses under the model that serves each group."""
        data = ResidentData(few, number, channels_last=self.runner.channels_last)
        rows = []
        for group in range(len(self.state.groups)):
            serving = self.models.serving(group)
            self.models.load(serving)
            personal, _ = self.starts.find("group", number, group=serving)
            with repeatable(data.labels.device):
                rows.append(self.runner.losses_on(data, {}, self.models.buffers, personal).cpu())
        return torch.stack(rows)


def place_by_loss(client: str, losses: Tensor) -> Placement:
    """Return the group whose model has the lowest loss on a client's examples, float64 (groups, examples).

    The certainty is the group's share of the labels' likelihood, exp(-sum of losses). Networks are surer than they are
    right, so no client is refused by it.
    """
    means, chances = losses.mean(1), (-losses.sum(1)).softmax(0)
    group = int(means.argmin())
    return Placement(
        client=client,
        group=group,
        certainty=float(chances[group]),
        chances=tuple(chances.tolist()),
        num_examples=losses.shape[1],
        labelled=True,
        by="loss",
        reason=f"the lowest loss on its training examples ({float(means[group]):.3f})",
    )


def need_labels_used(found: Sequence[Placement | int | None], *, labels: bool) -> None:
    """Raise UsageError if labels were forbidden for a placing that none of the clients needed."""
    if not labels and not any(isinstance(own, Placement) for own in found):
        raise UsageError(
            "labels=False (--no-labels) is for newcomers that are placed in a group, and no client is placed here. "
            "Leave it out, or place each client by start='group' (--start group).",
            code="settings-conflict",
            setting="labels",
        )


def need_placed(placements: Sequence[Placement], models: GroupModels | None = None) -> None:
    """Raise DataError if a client could not be placed; warn of it where the model of all clients may serve it."""
    refused = [own for own in placements if not own.placed]
    if models is not None:
        left = len(models.left()) == len(models.state.groups)
        for own in refused:
            warnings.warn(
                f"client {own.client} is not placed: {own.reason} It has the model of all clients"
                f"{', which all groups have left' if left else ''}.",
                stacklevel=4,
            )
    elif refused:
        first = refused[0]
        more = f" Nor are {len(refused) - 1} others." if len(refused) > 1 else ""
        raise DataError(
            f"client {first.client} is not placed: {first.reason}{more} In Python you can also name a group (group=).",
            code="placement-uncertain",
            client=first.client,
            reason=first.refusal,
            chances=first.chances,
        )

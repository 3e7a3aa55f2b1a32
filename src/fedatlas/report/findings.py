"""What a check found, as a page shows it: from a diagnosis, or from the file that ``fedatlas check RUN`` leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.atlas.doctor.suspect import Cells, Suspect
from fedatlas.errors import RunFolderError
from fedatlas.parts.checks import find_misfit
from fedatlas.runs.files import atomic_write
from fedatlas.runs.run import CHECK

HIDDEN = {"text": "", "look": "", "cells": None}
"""Of a copy to share: texts may name clients, and cells are of their data."""


class _Way(TypedDict):
    found: bool
    strength: float
    evidence: str
    figures: NotRequired[str]


class _Cells(TypedDict):
    how: str
    columns: list[str]
    rows: list[list[str]]


class _Person(TypedDict):
    client: str
    kind: str
    reason: str
    look: str
    figure: NotRequired[str]
    cells: NotRequired[_Cells]


class _File(TypedDict):
    shift: dict[str, _Way]
    groups: dict[str, int]
    suspects: list[_Person]
    different: list[_Person]
    remarks: list[str]
    advice: list[str]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """How clients differ, whose data are probably wrong, and what to do."""

    shift: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, int]
    """The group of each client, by name."""
    suspects: tuple[Suspect, ...]
    different: tuple[Suspect, ...]
    remarks: tuple[str, ...]
    advice: tuple[tuple[str, str], ...]
    """Commands, and what each is for; empty where that is not known."""

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> Findings:
        """Return the findings of a diagnosis."""
        return cls(
            shift={way: dict(vars(finding)) for way, finding in diagnosis.shift.items()},
            groups={m.name: group for m, group in zip(diagnosis.clients, diagnosis.groups, strict=True)},
            suspects=diagnosis.suspects,
            different=diagnosis.different,
            remarks=diagnosis.remarks,
            advice=tuple((own.command, own.why) for own in diagnosis.advice),
        )

    @classmethod
    def read(cls, folder: Path) -> Findings | None:
        """Return the findings that a run's folder holds, if there are any."""
        path = folder / CHECK
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}); delete it, or run `fedatlas check` on the run again.",
                code="file-unreadable",
                path=str(path),
            ) from error
        if find_misfit(found, _File, "") is not None:
            raise RunFolderError(
                f"{path} is not the result of a check; delete it, or run `fedatlas check` on the run again.",
                code="file-altered",
                path=str(path),
            )
        return cls(
            shift=found["shift"],
            groups=found["groups"],
            suspects=_people(found["suspects"]),
            different=_people(found["different"]),
            remarks=tuple(found["remarks"]),
            advice=tuple(zip(found["advice"], _whys(found), strict=True)),
        )

    def block(self, names: Sequence[str], *, shared: bool) -> dict[str, Any]:
        """Return the findings about the clients of a page; of a shared one without texts, which may name clients."""
        place = {name: i for i, name in enumerate(names)}

        def said(people: Sequence[Suspect]) -> list[dict[str, Any]]:
            return [
                {"client": place[own.client], "kind": own.kind, "figure": own.figure}
                | (HIDDEN if shared else {"text": own.reason, "look": own.look, "cells": _cells_block(own.cells)})
                for own in people
                if own.client in place
            ]

        ways = {
            way: {
                "found": own["found"],
                "strength": round(float(own["strength"]), 3),
                "evidence": "" if shared else own["evidence"],
                "figures": own.get("figures", ""),
            }
            for way, own in self.shift.items()
        }
        remarks = [] if shared else list(self.remarks)
        return {"shift": ways, "suspects": said(self.suspects), "different": said(self.different), "remarks": remarks}


def keep_findings(diagnosis: Diagnosis, folder: Path) -> None:
    """Write a diagnosis into the folder of the run whose clients were checked, for its page."""
    # Without the seconds that it took: the same data leave the same file.
    kept = {key: value for key, value in diagnosis.to_dict().items() if key != "seconds"}
    kept["why"] = [own.why for own in diagnosis.advice]
    atomic_write(folder / CHECK, json.dumps(kept, indent=1).encode())


def _whys(found: Mapping[str, Any]) -> list[str]:
    """Return what each command of the advice is for; files of earlier versions do not say it."""
    whys = found.get("why")
    count = len(found["advice"])
    known = isinstance(whys, list) and len(whys) == count and all(isinstance(why, str) for why in whys)
    return list(whys) if known and whys is not None else [""] * count


def _people(rows: Sequence[_Person]) -> tuple[Suspect, ...]:
    return tuple(
        Suspect(
            own["client"],
            own["kind"],
            own["reason"],
            own["look"],
            "",
            figure=own.get("figure", ""),
            cells=_read_cells(own.get("cells")),
        )
        for own in rows
    )


def _read_cells(own: _Cells | None) -> Cells | None:
    return None if own is None else Cells(own["how"], tuple(own["columns"]), tuple(map(tuple, own["rows"])))


def _cells_block(cells: Cells | None) -> dict[str, Any] | None:
    return None if cells is None else asdict(cells)

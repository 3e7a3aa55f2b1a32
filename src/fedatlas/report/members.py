"""The clients of a report: their names and domains, the look of their data, their accuracy."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedatlas.errors import RunFolderError
from fedatlas.report.charts import colors
from fedatlas.report.groups import final
from fedatlas.runs.previews import PORTRAITS
from fedatlas.runs.run import Run


@dataclass(frozen=True, eq=False)
class Member:
    """One client of the federation."""

    id: int
    name: str
    domain: str | None
    """Its type, where the run knows one."""
    held_out: bool
    num_train: int
    num_test: int
    label_counts: np.ndarray
    color: str
    """Its domain's."""

    @property
    def label_shares(self) -> np.ndarray:
        """The share of each class in its training data."""
        return np.asarray(self.label_counts / max(1, self.label_counts.sum()))


@dataclass(frozen=True, eq=False)
class Portraits:
    """The previews of the clients' data that a run saved."""

    vectors: np.ndarray | None
    images: dict[int, np.ndarray]
    """Of the clients that are pictured, by id."""


def domain_colors(runs: Sequence[Run]) -> dict[str, str]:
    """Return one colour for each domain of any run, in order of first appearance."""
    names = [_kind(client) for run in runs for client in run.resolved["federation"]["clients"]]
    found = dict.fromkeys(name for name in names if name is not None)
    return {name: colors.nth(colors.DOMAINS, i) for i, name in enumerate(found)}


def read_members(run: Run, by_domain: dict[str, str]) -> list[Member]:
    """Return the clients of a run, those of a domain together, each domain in the order of its colours."""
    order = {domain: i for i, domain in enumerate(by_domain)}
    members = [
        Member(
            id=i,
            name=client["name"],
            domain=_kind(client),
            held_out=client["held_out"],
            num_train=client["num_train"],
            num_test=client["num_test"],
            label_counts=np.asarray(client["label_counts"], dtype=float),
            color=by_domain.get(_kind(client) or "", colors.NO_DOMAIN),
        )
        for i, client in enumerate(run.resolved["federation"]["clients"])
    ]
    return sorted(members, key=lambda member: order.get(member.domain or "", len(order)))


def _kind(client: Mapping[str, Any]) -> str | None:
    """Return what results of a client are gathered by, as ``Client.kind`` says it."""
    kind: str | None = client.get("type", client["domain"])
    return kind


def read_portraits(run: Run) -> Portraits:
    """Return the vectors and images that a run kept, where there are any."""
    path = run.folder / PORTRAITS
    if not path.exists():
        return Portraits(None, {})
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            vectors, images = file["vectors"], {}
            if "images" in file:
                images = dict(zip(file["pictured"].tolist(), file["images"], strict=True))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}); delete it to report without it.", code="file-unreadable", path=str(path)
        ) from error
    expected = len(run.resolved["federation"]["clients"])
    if len(vectors) != expected or any(i >= expected for i in images):
        found = f"{path} is of {len(vectors)} clients, the run has {expected}"
        raise RunFolderError(
            f"{found}; delete it to report without it.",
            code="wrong-count",
            path=str(path),
            got=len(vectors),
            wanted=expected,
        )
    return Portraits(vectors, images)


def last_accuracies(run: Run) -> dict[str, float]:
    """Return each client's accuracy at the last evaluation, held-out ones too, by name."""
    entry = final(run)
    if entry is None:
        return {}
    lines = (line for line in run.clients if line["round"] == entry["round"] and "accuracy" in line)
    return {line["client"]: float(line["accuracy"]) for line in lines}


def domain_title(domain: str | None, members: Sequence[Member]) -> str:
    """Return a domain's name, and one for the clients that have none."""
    if domain is not None:
        return domain
    return "all clients" if all(member.domain is None for member in members) else "no domain"


def by_domain(members: Sequence[Member]) -> list[tuple[str | None, list[Member]]]:
    """Return neighbours of one domain together."""
    found: dict[str | None, list[Member]] = {}
    for member in members:
        found.setdefault(member.domain, []).append(member)
    return list(found.items())

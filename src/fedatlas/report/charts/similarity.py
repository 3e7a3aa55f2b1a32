"""Similarity of the clients' data: the heat map of their vectors' cosines, and a map of the clients in a plane."""

from collections.abc import Sequence

import numpy as np
import torch

from fedatlas.atlas.grouping import like_together
from fedatlas.atlas.plane import principal
from fedatlas.report.charts.colors import DIVERGING, INK
from fedatlas.report.charts.markup import Scale, cells, clipped, color_key, element, escape, figure, svg, write
from fedatlas.report.charts.symbols import domain_strip, dot
from fedatlas.report.members import Member, by_domain

_NAMED_ROWS = 40


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of every two rows; a row of zeros has cosine 0 with all others."""
    rows = np.asarray(vectors, dtype=float)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(lengths > 0, lengths, 1)
    return np.asarray(np.clip(unit @ unit.T, -1, 1))


def similarity(members: Sequence[Member], vectors: np.ndarray) -> str:
    """Return the heat map and the map side by side; without domains, similar clients are side by side."""
    own = vectors[[member.id for member in members]]
    matrix = cosines(own)
    if not any(member.domain is not None for member in members):
        order = like_together(matrix)
        members, own, matrix = [members[i] for i in order], own[order], matrix[np.ix_(order, order)]
    return _in_words(members, matrix) + element("div", _heat_map(members, matrix) + _plane(members, own), class_="pair")


def _in_words(members: Sequence[Member], matrix: np.ndarray) -> str:
    """Return how much more alike clients of one domain are, where that can be said."""
    domains = [member.domain for member in members]
    same = np.array([[one is not None and one == other for other in domains] for one in domains])
    within, between = matrix[same & ~np.eye(len(members), dtype=bool)], matrix[~same]
    if len(set(domains)) < 2 or not len(within) or not len(between):
        return ""
    said = (
        f"Mean cosine between clients of one domain: {within.mean():.2f}; of different domains: {between.mean():.2f}."
    )
    return element("p", said.replace("-", "−"), class_="note")


def _heat_map(members: Sequence[Member], matrix: np.ndarray) -> str:
    named = len(members) <= _NAMED_ROWS
    left, top, width = (104.0 if named else 14.0), 14.0, 510.0
    side = width - left
    step = side / len(members)

    def say(i: int, j: int) -> str:
        return f"{members[i].name} and {members[j].name}: {matrix[i, j]:.2f}".replace("-", "−")

    parts = cells((matrix + 1) / 2, DIVERGING, (left, top, side, side), say)
    parts += domain_strip(members, left - 9, top, step) + domain_strip(members, left, top - 9, step, along=True)
    if named:
        parts += [
            write(clipped(m.name, 15), left - 14, top + (i + 0.5) * step + 4, anchor="end", title=m.name)
            for i, m in enumerate(members)
        ]
    title = "Cosine of the clients' vectors"
    return figure(title, svg(width, top + side + 2, parts, title), color_key(DIVERGING, "−1", "1"))


def _plane(members: Sequence[Member], vectors: np.ndarray) -> str:
    """Return the clients at the two principal components of their vectors, with the domains' names at their centres."""
    places = principal(torch.from_numpy(np.asarray(vectors, dtype=float)))
    width, height, inset = 510.0, 420.0, 34.0
    reach = np.maximum(np.abs(places).max(axis=0), 1e-9).tolist()
    across, up = Scale(-reach[0], reach[0], inset, width - inset), Scale(-reach[1], reach[1], height - inset, inset)
    where = {member.id: (across(x), up(y)) for member, (x, y) in zip(members, places.tolist(), strict=True)}
    parts = [element("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, class_="plane")]
    parts.append(element("path", d=f"M{width / 2} 1V{height - 1}M1 {height / 2}H{width - 1}", class_="grid"))
    parts += [dot(member, *where[member.id], 6 if len(members) <= 60 else 4) for member in members]
    centres = [(domain, np.mean([where[m.id] for m in own], axis=0).tolist()) for domain, own in by_domain(members)]
    parts += _apart([(clipped(domain, 20), x, y - 12) for domain, (x, y) in centres if domain is not None])
    title = "The two directions in which the vectors differ most"
    return figure(title, svg(width, height, parts, title))


def _apart(labels: Sequence[tuple[str, float, float]]) -> list[str]:
    """Return names at their points, moved up where they would cover another one."""
    placed: list[tuple[float, float, float]] = []
    parts = []
    for text, x, y in sorted(labels, key=lambda label: -label[2]):
        half = 3.9 * len(text)
        for other_x, other_y, other_half in placed:
            if abs(x - other_x) < half + other_half and y > other_y - 15:
                y = other_y - 15
        placed.append((x, y, half))
        parts.append(element("text", escape(text), x=x, y=y, text_anchor="middle", class_="halo", fill=INK))
    return parts

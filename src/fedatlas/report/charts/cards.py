"""An overview of the clients: the domains' sizes, the classes that each client holds, and a card per client."""

from collections.abc import Sequence

import numpy as np

from fedatlas.atlas.grouping import like_together
from fedatlas.report.charts.colors import SEQUENTIAL
from fedatlas.report.charts.markup import cells, clipped, color_key, element, escape, figure, picture, short, svg, write
from fedatlas.report.charts.similarity import cosines
from fedatlas.report.charts.symbols import domain_strip, held_out_tag, mark
from fedatlas.report.members import Member, Portraits, by_domain, domain_title
from fedatlas.runs.previews import pictured

_NAMED_ROWS = 40


def size_bars(members: Sequence[Member]) -> str:
    """Return one bar per domain, as long as its training data, cut into its clients."""
    domains = by_domain(members)
    totals = [sum(member.num_train for member in own) for _, own in domains]
    most = max(1, *totals)
    rows = ""
    for (domain, own), total in zip(domains, totals, strict=True):
        pieces = "".join(
            element("i", title=f"{m.name}: {m.num_train:,} training examples", style=f"flex-grow:{m.num_train}")
            for m in sorted(own, key=lambda member: -member.num_train)
            if m.num_train
        )
        style = f"width:{100 * total / most:.2f}%;color:{own[0].color}"
        bar = element("div", element("div", pieces, class_="pieces", style=style), class_="bar")
        held_out = sum(member.held_out for member in own)
        clients = f"{len(own)} client{'s' * (len(own) != 1)}" + (f", {held_out} held out" if held_out else "")
        name = mark(own[0].color) + element("b", escape(domain_title(domain, members)))
        sizes = element("small", f"{clients} · {total:,} examples")
        rows += element("div", element("span", name) + sizes, class_="row") + bar
    return figure("Training data, each piece a client", element("div", rows, class_="sizes"))


def label_map(members: Sequence[Member], classes: Sequence[str]) -> str:
    """Return the heat map of clients by classes: the share of each class in each client's training data.

    Without domains, clients with similar shares are side by side.
    """
    if not all(len(member.label_counts) for member in members):
        return ""  # over a network, label counts stay with the clients
    if not any(member.domain for member in members):
        members = [members[i] for i in like_together(cosines(np.stack([member.label_shares for member in members])))]
    named = len(members) <= _NAMED_ROWS
    row = 17.0 if named else max(2.0, min(8.0, 560 / len(members)))
    left, top, width = (112.0 if named else 22.0), 22.0, 500.0
    height = row * len(members)
    shares = np.stack([member.label_shares for member in members])
    # Without a floor, clients that hold all classes alike would look as uneven as any others.
    most = min(1.0, max(float(shares.max()), 3 / len(classes)))

    def say(i: int, j: int) -> str:
        return f"{members[i].name}, class {classes[j]}: {members[i].label_counts[j]:.0f} examples, {shares[i, j]:.0%}"

    parts = cells(shares / most, SEQUENTIAL, (left, top, width - left, height), say)
    parts += domain_strip(members, left - 10, top, row)
    if named:
        parts += [
            write(clipped(m.name, 16), left - 15, top + (i + 0.5) * row + 4, anchor="end", title=m.name)
            for i, m in enumerate(members)
        ]
    across = (width - left) / len(classes)
    every = max(1, round(34 / across))
    letters = max(3, int(every * across / 6))
    parts += [
        write(clipped(name, letters), left + (j + 0.5) * across, top - 7, anchor="middle", title=name)
        for j, name in enumerate(classes)
        if j % every == 0
    ]
    key = color_key(SEQUENTIAL, "0%", f"{most:.0%}")
    title = "Classes in each client's training data"
    return figure(title, svg(width, top + height + 2, parts, title), key)


def cards(members: Sequence[Member], portraits: Portraits, classes: Sequence[str]) -> str:
    """Return a card per client, by domain; of many clients the first of each domain."""
    chosen = pictured([member.domain for member in sorted(members, key=lambda member: member.id)])
    shown = [member for member in members if member.id in chosen]
    content = ""
    if len(shown) < len(members):
        first = ", the first of each domain" if any(member.domain for member in members) else ""
        said = f"{len(shown)} of the {len(members)} clients are shown here{first}; "
        content += element("p", said + "the table of every client further down names them all.", class_="note")
    for domain, own in by_domain(shown):
        if len(shown) > len(own):
            content += element("h3", mark(own[0].color) + escape(domain_title(domain, members)))
        content += element("div", "".join(_card(member, portraits, classes) for member in own), class_="cards")
    return content


def _card(member: Member, portraits: Portraits, classes: Sequence[str]) -> str:
    name = element("b", escape(member.name), title=member.name)
    title = element("div", name + held_out_tag(member), class_="title")
    sizes = element("small", f"{member.num_train:,} train · {member.num_test:,} test")
    images = ""
    if member.id in portraits.images:
        images = _sprite(portraits.images[member.id], member.num_train or member.num_test, member.name)
    content = title + sizes + images + _label_bars(member, classes)
    return element("article", content, class_="card", style=f"border-top-color:{member.color}")


def _label_bars(member: Member, classes: Sequence[str]) -> str:
    shares = member.label_shares
    if not len(shares):
        return ""
    most = max(float(shares.max()), 1e-9)
    bars = "".join(
        element("rect", x=j + 0.1, y=20 - 20 * share / most, width=0.8, height=20 * share / most, fill=member.color)
        for j, share in enumerate(shares.tolist())
        if share
    )
    largest = np.argsort(-shares, kind="stable")[:5]
    said = "classes: " + ", ".join(f"{classes[j]} {shares[j]:.0%}" for j in largest if shares[j])
    box = f'viewBox="0 0 {short(len(classes))} 20" preserveAspectRatio="none"'
    return (
        f'<svg class="labels" {box} role="img" aria-label="{escape(said)}">{element("title", escape(said))}{bars}</svg>'
    )


def _sprite(images: np.ndarray, count: int, name: str) -> str:
    """Return a client's images as one picture, side by side."""
    tiles = [_tile(image) for image in images[:count]]
    if not tiles:
        return ""
    gap = np.full((tiles[0].shape[0], max(1, tiles[0].shape[1] // 12), *tiles[0].shape[2:]), 255, dtype=np.uint8)
    # A client with fewer images than others keeps the same scale.
    tiles += [np.full_like(tiles[0], 255)] * (len(images) - len(tiles))
    strip = np.concatenate([part for tile in tiles for part in (tile, gap)][:-1], axis=1)
    return f'<img class="samples" alt="sample images of {escape(name)}" src="{picture(strip)}">'


def _tile(image: np.ndarray) -> np.ndarray:
    """Return one image (channels, height, width) as grey (height, width) or colour (height, width, 3) pixels."""
    return image.transpose(1, 2, 0) if len(image) == 3 else image[0]

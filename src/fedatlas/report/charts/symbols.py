"""Small signs that stand for a domain, an algorithm or a client wherever they occur."""

from collections.abc import Sequence

from fedatlas.report.charts.markup import element, escape
from fedatlas.report.members import Member, by_domain


def mark(color: str) -> str:
    """Return the small square that stands for a domain or an algorithm."""
    return element("i", class_="mark", style=f"background:{color}")


def held_out_tag(member: Member) -> str:
    """Return the tag of a client that is held out, nothing for others."""
    return element("em", "held out", class_="tag") if member.held_out else ""


def said_of(member: Member, figure: str = "") -> str:
    """Return the text that appears when a client is pointed at."""
    text = member.name + (", held out" if member.held_out else "")
    return element("title", escape(f"{text}: {figure}" if figure else text))


def dot(member: Member, x: float, y: float, radius: float, figure: str = "") -> str:
    """Return a client as a dot, a ring where it is held out; a ring leaves the dot of another client in sight."""
    said = said_of(member, figure)
    if member.held_out:
        return element("circle", said, cx=x, cy=y, r=radius + 1.5, class_="ring", stroke=member.color)
    return element("circle", said, cx=x, cy=y, r=radius, class_="dot", fill=member.color)


def domain_strip(members: Sequence[Member], x: float, y: float, step: float, *, along: bool = False) -> list[str]:
    """Return the colours of the domains down (or along) a heat map's side."""
    parts, start = [], 0
    for domain, own in by_domain(members):
        place = {"x": x, "y": y + start * step, "width": 5.0, "height": len(own) * step}
        if along:
            place = {"x": x + start * step, "y": y, "width": len(own) * step, "height": 5.0}
        if domain is not None:
            parts.append(element("rect", element("title", escape(domain)), fill=own[0].color, **place))
        start += len(own)
    return parts

"""The page: its sections in order, in one HTML file that needs nothing else."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedatlas.errors import RunFolderError
from fedatlas.report.charts.cards import cards, label_map, size_bars
from fedatlas.report.charts.curves import TOGETHER, accuracy_charts
from fedatlas.report.charts.markup import element, escape
from fedatlas.report.charts.newcomers import newcomers
from fedatlas.report.charts.similarity import similarity
from fedatlas.report.charts.spread import accuracy_by_group, client_charts, client_table
from fedatlas.report.groups import Group, distinct_runs, final, group_runs, same_split
from fedatlas.report.headline import default_title, key_figures, sentence, tests
from fedatlas.report.members import Member, Portraits, domain_colors, read_members, read_portraits
from fedatlas.report.settings import settings
from fedatlas.report.tables import comparison, domain_table
from fedatlas.runs.files import atomic_write
from fedatlas.runs.run import Run

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""The browser itself refuses whatever would have to be fetched."""


def write_report(runs: Sequence[Run], path: Path, *, title: str | None = None) -> Path:
    """Write one self-contained HTML page about a run, or comparing several on the same data, and return its path.

    Runs of one algorithm under the same settings (several seeds or folds) become one row, mean ± standard deviation;
    a run that is given twice counts once.
    """
    return write_page(render(runs, title=title), Path(path))


def write_page(page: str, path: Path) -> Path:
    """Write a page to a file, and return its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"cannot make {path.parent}: {error.strerror}. Write the report elsewhere.",
            code="file-unwritable",
            path=str(path.parent),
        ) from error
    atomic_write(path, page.encode("utf-8", errors="replace"))
    return path


def render(runs: Sequence[Run], *, title: str | None = None) -> str:
    """Return the page."""
    groups = group_runs(runs)
    runs = distinct_runs(runs)
    by_domain = domain_colors(runs)
    members = read_members(runs[0], by_domain)
    portraits = read_portraits(runs[0])
    classes = [str(name) for name in runs[0].resolved["federation"]["classes"]]
    sections = [
        ("results", "Results", _results(groups)),
        ("clients", "The clients", _clients(runs, members, portraits, classes)),
        ("rounds", "Over the rounds", _rounds(groups, by_domain)),
        ("spread", "By client and domain" if by_domain else "By client", _spread(groups, members, by_domain)),
        ("newcomers", "Brought in later", newcomers(runs, by_domain)),
        ("similarity", "How alike the clients are", _similarity(members, portraits)),
        ("settings", "Settings", settings(groups)),
    ]
    shown = [(key, name, content) for key, name, content in sections if content]
    links = "".join(element("a", escape(name), href=f"#{key}") for key, name, _ in shown)
    heading = title or default_title(groups)
    top = element("h1", escape(heading)) + element("p", sentence(groups, members), class_="lead")
    header = element("header", top + key_figures(groups, members) + tests(members) + element("nav", links))
    body = "".join(element("section", element("h2", escape(name)) + text, id=key) for key, name, text in shown)
    footer = element("footer", f"Made by fedatlas {escape(runs[0].resolved.get('versions', {}).get('fedatlas', ''))}")
    return document(heading, f"{header}\n<main>\n{body}\n</main>\n{footer}")


def document(title: str, body: str) -> str:
    """Return a self-contained page; ``body`` is markup."""
    style = resources.files("fedatlas.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>\n{style}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _results(groups: Sequence[Group]) -> str:
    if len(groups) == 1:
        return ""
    entries = [entry["evaluation"] for group in groups for run in group.runs if (entry := final(run))]
    said = (
        "Each figure is from the last evaluation of a run, in percent, over the clients that train. "
        "<b>accuracy</b>: clients weigh by their test examples. "
        "<b>sigma_client</b>: standard deviation over clients; lower is fairer. "
    )
    if any("domains" in entry for entry in entries):
        said += (
            "<b>domain mean</b>: mean over domains of the mean over each domain's clients. "
            "<b>sigma_type</b>: standard deviation over domains; lower is fairer. "
        )
    said += "<b>best</b>: the highest accuracy of any evaluation. The best value of each column is marked."
    return comparison(groups) + element("p", said, class_="note")


def _clients(runs: Sequence[Run], members: Sequence[Member], portraits: Portraits, classes: Sequence[str]) -> str:
    partition = runs[0].resolved["federation"]["partition"]
    note = element("p", f"How they came about: {escape(partition)}.", class_="note") if partition else ""
    alike = len(same_split(runs))
    if alike < len(runs):
        said = (
            f"The runs do not all share one split of the data. The clients shown are those of {escape(runs[0].folder)} "
            f"({alike} of {len(runs)} runs have them), and figures by client are over those runs alone."
        )
        note += element("p", said, class_="note")
    pictures = element("div", size_bars(members) + label_map(members, classes), class_="pair")
    return note + pictures + cards(members, portraits, classes)


def _rounds(groups: Sequence[Group], by_domain: dict[str, str]) -> str:
    said = "Measured on each client's test part"
    runs = [run for group in groups for run in group.runs]
    if any("held_out" in entry for run in runs if (entry := final(run))):
        said += "; dashed: the clients that never trained"
    if len(runs) > len(groups):
        said += "; the band is one standard deviation over runs to each side"
    if len(groups) > TOGETHER:
        said = f"Accuracy in percent, one algorithm a panel, the others in grey. {said}"
    return element("p", f"{said}.", class_="note") + accuracy_charts(groups, by_domain)


def _spread(groups: Sequence[Group], members: Sequence[Member], by_domain: dict[str, str]) -> str:
    accuracies = accuracy_by_group(groups)
    if not accuracies:
        return element("p", "No client was evaluated yet.", class_="empty") + client_table(members, {})
    each, apart = ("column", "paler ones are") if len(accuracies) == 1 else ("dot", "rings are")
    said = (
        f"Accuracy in percent at the last evaluation. Each {each} is a client, the line the mean over those that train"
    )
    said += f"; {apart} held out." if any(member.held_out for member in members) else "."
    table = domain_table(groups, by_domain)
    return (
        element("p", said, class_="note")
        + client_charts(members, accuracies)
        + (element("h3", "Accuracy by domain") + table if table else "")
        + client_table(members, accuracies)
    )


def _similarity(members: Sequence[Member], portraits: Portraits) -> str:
    if portraits.vectors is None or len(members) < 2:
        return ""
    what = (
        "mean and spread of its images in each cell of an 8 × 8 grid"
        if portraits.images
        else "how often each token occurs (text) or the mean and spread of each feature"
    )
    said = (
        f"Each client has a plain vector of what its training data looks like: {what}, and the share of each class, "
        "standardised over clients."
    )
    has_domains = any(member.domain is not None for member in members)
    said += " Clients are in the order of their domains." if has_domains else " Clients that are alike stand together."
    return element("p", said, class_="note") + similarity(members, portraits.vectors)

"""Table 2: the six methods by the degradation of the clients; Digits, which the paper leaves out, by set."""

from fedatlas.data import DOMAINS
from papers.fedpce.setting import DIGITS, KINDS, METHODS, SETS, all_methods, options_of, said, shown
from papers.options import Options, script
from papers.tables import Cell, Table, measure, write_table

PAPER = {
    "CIFAR-10": {
        "FedAvg": (53.23, 14.45, 75.36, 64.24, 83.40, 77.63),
        "FedProx": (53.40, 14.23, 75.11, 64.09, 83.30, 77.97),
        "FedPer": (51.05, 46.19, 72.11, 67.39, 80.84, 77.39),
        "FedBN": (53.27, 47.92, 76.01, 70.87, 83.37, 80.49),
        "FedPCE": (53.35, 48.92, 75.33, 68.49, 83.59, 79.58),
        "FedPCE(62)": (53.20, 48.29, 75.76, 69.42, 83.43, 79.58),
    },
    "CIFAR-100": {
        "FedAvg": (23.32, 9.11, 35.43, 23.33, 46.88, 41.53),
        "FedProx": (23.00, 9.27, 35.24, 22.88, 46.92, 41.37),
        "FedPer": (17.11, 18.05, 23.74, 21.26, 34.06, 34.08),
        "FedBN": (23.07, 20.64, 37.01, 30.13, 46.75, 45.10),
        "FedPCE": (22.94, 22.25, 33.38, 24.82, 43.40, 36.75),
        "FedPCE(62)": (23.06, 22.15, 32.65, 22.15, 42.98, 36.23),
    },
}
"""Collaborative and client training, for each degradation."""


def table_2(title: str, options: Options) -> Table:
    """Return the table of one data set."""
    setting, domains = said(options, title), options.pick(DIGITS, DOMAINS)
    kinds = KINDS if title in PAPER else dict(zip(domains, domains, strict=True))
    columns = tuple(f"{kind}, {phase} tr." for kind in kinds.values() for phase in ("col.", "cl."))
    keys = [f"{phase}_{kind}" for kind in kinds for phase in ("col", "cl")]
    rows = {}
    for method in METHODS:
        papers = PAPER[title][method] if title in PAPER else (None,) * len(keys)
        rows[method] = [Cell(f"{title} {method}", paper, key) for key, paper in zip(keys, papers, strict=True)]
    kind = "degradation" if title in PAPER else "set"
    words = f"{setting} Means over the clients of a {kind}, without weights, in the best rounds of Table 1."
    return Table(title=f"Table 2, {shown(title, options)}", setting=words, columns=columns, rows=rows)


@script
def main() -> None:
    """Measure and print the table."""
    options = options_of(__doc__ or "", sets="CIFAR-10")
    for title in options.listed("sets", SETS):
        write_table(table_2(title, options), measure(all_methods(title, options), options), options)


if __name__ == "__main__":
    main()

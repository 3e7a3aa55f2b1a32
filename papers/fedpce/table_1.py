"""Table 1: six methods on CIFAR-10, CIFAR-100 and Digits, in collaborative and in client training."""

from papers.fedpce.setting import METHODS, SETS, all_methods, options_of, said, shown
from papers.options import Options, script
from papers.tables import Cell, Table, measure, write_table

PAPER = {
    "CIFAR-10": {
        "FedAvg": (70.62, 52.13),
        "FedProx": (70.54, 52.12),
        "FedPer": (67.96, 63.67),
        "FedBN": (70.83, 66.44),
        "FedPCE": (70.71, 65.67),
        "FedPCE(62)": (70.74, 65.77),
    },
    "CIFAR-100": {
        "FedAvg": (35.23, 24.71),
        "FedProx": (35.07, 24.56),
        "FedPer": (24.97, 24.49),
        "FedBN": (35.63, 31.99),
        "FedPCE": (33.26, 27.97),
        "FedPCE(62)": (32.91, 26.87),
    },
    "Digits": {
        "FedAvg": (92.96, 92.15),
        "FedProx": (93.04, 92.67),
        "FedPer": (92.93, 92.16),
        "FedBN": (92.37, 89.60),
        "FedPCE": (93.24, 91.95),
        "FedPCE(62)": (93.11, 91.75),
    },
}
PARAMETERS: dict[str, tuple[float, float | None]] = {
    "FedAvg": (11.2, None),
    "FedProx": (11.2, None),
    "FedPer": (11.2, 5100),
    "FedBN": (11.2, 10600),
    "FedPCE": (12, 32),
    "FedPCE(62)": (11.2, 32),
}
"""Of collaborative training, in millions, and of client training."""
COLUMNS = ("Col. tr.", "at the end", "averaged model", "Cl. tr.", "at the end", "before tuning")
KEYS = ("col_best", "col_last", "shared_last", "cl_best", "cl_last", "cl_before")
COUNTS = ("millions of parameters", "tuned by a new client")


def table_1(title: str, options: Options) -> Table:
    """Return the table of one data set."""
    rows = {}
    for method in METHODS:
        name, (col, cl) = f"{title} {method}", PAPER[title][method]
        papers = {"col_best": col, "cl_best": cl}
        millions, tuned = PARAMETERS[method]
        counts = (Cell(name, millions, "parameters", scale=1e-6), Cell(name, tuned, "tuned", scale=1, digits=0))
        rows[method] = [*(Cell(name, papers.get(key), key) for key in KEYS), *counts]
    return Table(
        title=f"Table 1, {shown(title, options)}", setting=said(options, title), columns=(*COLUMNS, *COUNTS), rows=rows
    )


@script
def main() -> None:
    """Measure and print the table; CIFAR-100 only where ``--sets`` names it."""
    options = options_of(__doc__ or "", sets="CIFAR-10,Digits")
    for title in options.listed("sets", SETS):
        results = measure(all_methods(title, options), options)
        write_table(table_1(title, options), results, options)


if __name__ == "__main__":
    main()

"""The ablations of FedPCE on CIFAR-10: Tables 3, 4 and 5."""

from collections.abc import Callable, Mapping
from typing import Any

from papers.fedpce.setting import options_of, said, variant
from papers.options import Options, script
from papers.tables import Cell, Table, Variant, measure, write_table

TITLE, METHOD = "CIFAR-10", "FedPCE"


def base(options: Options) -> Variant:
    """Return FedPCE as in Table 1: 32 numbers, 30 clients, 64 hidden units."""
    return variant(TITLE, METHOD, options)


def changed(options: Options, **algorithm: Any) -> Variant:
    """Return FedPCE with other settings."""
    words = ", ".join(f"{key} {value}" for key, value in algorithm.items())
    return variant(TITLE, METHOD, options, name=f"{TITLE} {METHOD}, {words}", algorithm=algorithm)


@script
def ablation(
    title: str, what: str, paper: Mapping[int, tuple[float, float]], made: Callable[[Options, int], Variant]
) -> None:
    """Measure and print one ablation: collaborative and client accuracy for each value."""
    options = options_of(title)
    variants = {value: made(options, value) for value in paper}
    results = measure(list(variants.values()), options)
    rows = {
        row: [Cell(variants[value].name, numbers[place], key) for value, numbers in paper.items()]
        for place, (row, key) in enumerate((("Col. tr.", "col_best"), ("Cl. tr.", "cl_best")))
    }
    columns = tuple(f"{what} {value}" for value in paper)
    write_table(Table(title=title, setting=said(options), columns=columns, rows=rows), results, options)

"""The shapes that FedGCR's tables come in: eight methods, numbers of groups, values of delta, the ablation."""

from collections.abc import Mapping

from papers.fedgcr.published import ABLATIONS, DELTAS, GROUP_COUNTS, SLIPS, Row
from papers.fedgcr.variants import ABLATION, FACTORS, METHODS, TITLES, columns, measure_and_write, options_for, variant
from papers.options import script


@script
def methods_table(number: int, data: str, papers: Mapping[str, Row]) -> None:
    """Print Table 1, 2 or 6: eight methods at three factors."""
    title = f"Table {number}: {TITLES[data]}, eight methods"
    options = options_for(title)
    rows = {
        name: [
            (variant(options, data, factor, method), papers[name][3 * i : 3 * i + 3])
            for i, factor in enumerate(FACTORS)
        ]
        for name, method in METHODS.items()
    }
    measure_and_write(
        title, columns(*(f"factor {factor}: " for factor in FACTORS)), rows, options, note=SLIPS.get(number, "")
    )


@script
def group_counts_table(number: int, data: str) -> None:
    """Print Table 4, 8 or 9: FedGCR with other numbers of groups, at factors 1 and 10."""
    title = f"Table {number}: {TITLES[data]}, FedGCR by the number of groups"
    options = options_for(title, seeds=(0,))
    rows = {
        f"T' = {count}": [
            (variant(options, data, factor, "fedgcr", num_groups=count), row[3 * i : 3 * i + 3])
            for i, factor in enumerate((1, 10))
        ]
        for count, row in GROUP_COUNTS[data].items()
    }
    measure_and_write(title, columns("factor 1: ", "factor 10: "), rows, options, note=SLIPS.get(number, ""))


@script
def deltas_table(number: int, data: str) -> None:
    """Print Table 10 or 11: FedGCR with other deltas, at factors 1 and 5."""
    title = f"Table {number}: {TITLES[data]}, FedGCR by delta"
    options = options_for(title, seeds=(0,))
    rows = {
        f"delta = {delta}": [
            (variant(options, data, factor, "fedgcr", delta=delta), row[3 * i : 3 * i + 3])
            for i, factor in enumerate((1, 5))
        ]
        for delta, row in DELTAS[data].items()
    }
    measure_and_write(title, columns("factor 1: ", "factor 5: "), rows, options)


@script
def ablation_table(number: int, data: str) -> None:
    """Print Table 5, 12 or 13: each half of FedGCR alone, at factor 10."""
    title = f"Table {number}: {TITLES[data]}, the halves of FedGCR"
    options = options_for(title)
    rows = {name: [(variant(options, data, 10, method), ABLATIONS[data][name])] for name, method in ABLATION.items()}
    note = "FedGR alone groups clients by the class-balanced mean of their features."
    measure_and_write(title, columns(""), rows, options, note=note)

"""Figure 4: the epochs of the index (a, b: the numbers of Table 6), and aggregation alone (c, d)."""

from __future__ import annotations

from papers.client2vec import table_6
from papers.client2vec.cases import case, chosen, show
from papers.client2vec.figures import draw_bars
from papers.client2vec.published import TABLE_1, TABLE_6
from papers.client2vec.settings import CIFAR, domains_of, read
from papers.options import script

COLUMNS = ("original", "GLOBAL ii")


@script
def main() -> None:
    """Print the tables of the four parts and draw them."""
    options = read("Figure 4: epochs of the index, aggregation alone", bases="")
    parts = {base: table_6.cells(base, options) for base in chosen(TABLE_6, options)}
    results = show("Figure 4ab: epochs of the index, CIFAR-10", CIFAR, table_6.COLUMNS, parts, options)
    groups = {base: [variant.name for variant, _ in cells] for base, cells in parts.items()}
    draw_bars("Figure 4ab: epochs of the index, CIFAR-10", groups, results, options)
    for letter, data, words, setting, published in (
        ("c", "cifar10", "CIFAR-10", CIFAR, TABLE_1["CIFAR-10"]),
        ("d", *domains_of(options), TABLE_1["DomainNet"]),
    ):
        # The figure of aggregation alone has no numbers; only those of the originals are printed elsewhere.
        rows = {
            base: [
                (case(options, title, data=data, base=base), numbers["original"] if title == "original" else None)
                for title in COLUMNS
            ]
            for base, numbers in chosen(published, options).items()
        }
        title = f"Figure 4{letter}: aggregation alone, {words}"
        claim = "The paper: aggregation alone is never below the original."
        results = show(title, f"{setting} {claim}", COLUMNS, rows, options)
        draw_bars(title, {base: [v.name for v, _ in cells] for base, cells in rows.items()}, results, options)


if __name__ == "__main__":
    main()

"""Figure 5: the weight of local training (a, b: Table 7) and the temperature of the sampling (c, d: Table 5)."""

from __future__ import annotations

from papers.client2vec import table_5, table_7
from papers.client2vec.cases import chosen, show
from papers.client2vec.figures import draw_bars
from papers.client2vec.published import TABLE_5, TABLE_7
from papers.client2vec.settings import CIFAR, read
from papers.options import script


@script
def main() -> None:
    """Print the tables of the parts and draw them."""
    options = read("Figure 5: weight of local training, temperature of the sampling", bases="")
    for letters, words, cells, columns, published in (
        ("ab", "weight of local training", table_7.cells, table_7.COLUMNS, list(TABLE_7)),
        ("cd", "temperature of the sampling", table_5.cells, table_5.COLUMNS, list(TABLE_5)),
    ):
        rows = {base: cells(base, options) for base in chosen(dict.fromkeys(published), options)}
        title = f"Figure 5{letters}: {words}, CIFAR-10"
        results = show(title, CIFAR, columns, rows, options)
        draw_bars(title, {base: [v.name for v, _ in own] for base, own in rows.items()}, results, options)


if __name__ == "__main__":
    main()

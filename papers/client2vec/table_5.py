"""Table 5: the temperature of the sampling, case i alone."""

from __future__ import annotations

from papers.client2vec.cases import case, chosen, show, swept
from papers.client2vec.published import TABLE_5
from papers.client2vec.settings import CIFAR, STRATEGIES, read
from papers.options import Options, script
from papers.tables import Variant

TAUS = (0.1, 0.5, 1.0, 2.0)
COLUMNS = ("original", *(f"{title}, tau {tau:g}" for title in STRATEGIES for tau in TAUS))


def cells(base: str, options: Options) -> list[tuple[Variant, float]]:
    """Return the variants of one base with the paper's numbers, in the columns' order."""

    def made(title: str, tau: float) -> Variant:
        return case(options, f"{title} i", base=base, uses={"tau": tau}, label=f"{title} i, tau {tau:g}")

    return swept(base, TABLE_5[base], TAUS, made, options)


@script
def main() -> None:
    """Print the table."""
    options = read("Table 5: the temperature of the sampling", bases="")
    rows = {base: cells(base, options) for base in chosen(TABLE_5, options)}
    show("Table 5: tau of the sampling, CIFAR-10, best round", CIFAR, COLUMNS, rows, options)


if __name__ == "__main__":
    main()

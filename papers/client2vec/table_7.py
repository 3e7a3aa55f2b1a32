"""Table 7: the weight of the two terms of local training, all cases."""

from __future__ import annotations

from papers.client2vec.cases import case, chosen, show, swept
from papers.client2vec.published import TABLE_7
from papers.client2vec.settings import CIFAR, STRATEGIES, read
from papers.options import Options, script
from papers.tables import Variant

WEIGHTS = (1.0, 5.0, 10.0)
COLUMNS = ("original", *(f"{title}, weight {weight:g}" for title in STRATEGIES for weight in WEIGHTS))


def cells(base: str, options: Options) -> list[tuple[Variant, float]]:
    """Return the variants of one base with the paper's numbers, in the columns' order."""

    def made(title: str, weight: float) -> Variant:
        uses = {"lambda_o": weight, "lambda_d": weight}
        return case(options, f"{title} i+ii+iii", base=base, uses=uses, label=f"{title} i+ii+iii, weight {weight:g}")

    return swept(base, TABLE_7[base], WEIGHTS, made, options)


@script
def main() -> None:
    """Print the table."""
    options = read("Table 7: the weight of local training", bases="")
    rows = {base: cells(base, options) for base in chosen(TABLE_7, options)}
    show("Table 7: weight of local training, CIFAR-10, best round", CIFAR, COLUMNS, rows, options)


if __name__ == "__main__":
    main()

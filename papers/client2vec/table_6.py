"""Table 6: the epochs of the index, all cases."""

from __future__ import annotations

from papers.client2vec.cases import case, chosen, show, swept
from papers.client2vec.published import TABLE_6
from papers.client2vec.settings import CIFAR, STRATEGIES, read
from papers.options import Options, script
from papers.tables import Variant

EPOCHS = (100, 500)
COLUMNS = ("original", *(f"{title}, {epochs} epochs" for title in STRATEGIES for epochs in EPOCHS))


def cells(base: str, options: Options) -> list[tuple[Variant, float]]:
    """Return the variants of one base with the paper's numbers, in the columns' order."""

    def made(title: str, epochs: float) -> Variant:
        label = f"{title} i+ii+iii, {epochs} epochs"
        return case(options, f"{title} i+ii+iii", base=base, index={"epochs": epochs}, label=label)

    return swept(base, TABLE_6[base], EPOCHS, made, options)


@script
def main() -> None:
    """Print the table."""
    options = read("Table 6: the epochs of the index", bases="")
    rows = {base: cells(base, options) for base in chosen(TABLE_6, options)}
    show("Table 6: epochs of the index, CIFAR-10, best round", CIFAR, COLUMNS, rows, options)


if __name__ == "__main__":
    main()

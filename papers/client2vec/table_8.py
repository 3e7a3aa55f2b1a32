"""Table 8: local training alone against all cases."""

from papers.client2vec.cases import case, chosen, show
from papers.client2vec.published import TABLE_8
from papers.client2vec.settings import CIFAR, read
from papers.options import script

COLUMNS = ("original", "FEDERATED iii", "FEDERATED i+ii+iii", "GLOBAL iii", "GLOBAL i+ii+iii")


@script
def main() -> None:
    """Print the table."""
    options = read("Table 8: local training alone", bases="")
    rows = {
        base: [
            (case(options, title, base=base), number)
            for title, number in zip(COLUMNS, (original, *federated, *global_), strict=True)
        ]
        for base, (original, federated, global_) in chosen(TABLE_8, options).items()
    }
    show("Table 8: local training alone, CIFAR-10, best round", CIFAR, COLUMNS, rows, options)


if __name__ == "__main__":
    main()

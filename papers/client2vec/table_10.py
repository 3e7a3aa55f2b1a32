"""Table 10: two classes a client, all cases."""

from papers.client2vec.cases import case, chosen, show
from papers.client2vec.published import TABLE_10
from papers.client2vec.settings import CIFAR, read
from papers.options import script

COLUMNS = ("original", "GLOBAL i+ii+iii")


@script
def main() -> None:
    """Print the table."""
    options = read("Table 10: two classes a client", bases="")
    rows = {
        base: [
            (case(options, title, data="cifar10-two", base=base), number)
            for title, number in zip(COLUMNS, numbers, strict=True)
        ]
        for base, numbers in chosen(TABLE_10, options).items()
    }
    setting = CIFAR.replace("Dirichlet 0.1", "two classes a client") + " The paper does not say which strategy."
    show("Table 10: two classes a client, CIFAR-10, best round", setting, COLUMNS, rows, options)


if __name__ == "__main__":
    main()

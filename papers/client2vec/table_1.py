"""Table 1: the uses of the index, one after another, over base algorithms and data sets."""

from papers.client2vec.cases import case, chosen, show
from papers.client2vec.published import TABLE_1
from papers.client2vec.settings import CIFAR, DIGITS, PACS, read
from papers.client2vec.shakespeare import SETTING, available
from papers.options import script

DATA = {"CIFAR-10": "cifar10", "DomainNet": "pacs", "Digits": "digit_five", "Shakespeare": "shakespeare"}
SETTINGS = {"CIFAR-10": CIFAR, "DomainNet": PACS, "Digits": DIGITS, "Shakespeare": SETTING}


@script
def main() -> None:
    """Print one table for each data set."""
    options = read("Table 1: the uses of the index", bases="", sets="CIFAR-10,DomainNet,Digits,Shakespeare")
    for name in options.listed("sets", DATA):
        if name == "Shakespeare" and not available(options):
            print("Shakespeare is left out: make its file with python -m papers.client2vec.shakespeare.\n")
            continue
        published = chosen(TABLE_1["DomainNet" if name == "Digits" else name], options)
        columns = list(next(iter(published.values())))
        rows = {
            base: [(case(options, title, data=DATA[name], base=base), numbers[title]) for title in columns]
            for base, numbers in published.items()
        }
        shown = f"{DATA[name]} for the paper's DomainNet" if name in ("DomainNet", "Digits") else name
        show(f"Table 1, {name}: {shown}, best round", SETTINGS[name], columns, rows, options)


if __name__ == "__main__":
    main()

"""Table 1: the uses of the index, one after another, over base algorithms and data sets."""

from papers.client2vec.cases import case, chosen, show
from papers.client2vec.published import TABLE_1
from papers.client2vec.settings import CIFAR, DIGITS, domains_of, read
from papers.client2vec.shakespeare import SETTING, available
from papers.options import script

SETS = ("CIFAR-10", "DomainNet", "Digits", "Shakespeare")


@script
def main() -> None:
    """Print one table for each data set."""
    options = read("Table 1: the uses of the index", bases="", sets="CIFAR-10,DomainNet,Digits,Shakespeare")
    sets = {
        "CIFAR-10": ("cifar10", "CIFAR-10", CIFAR),
        "DomainNet": domains_of(options),
        "Digits": ("digit_five", "digit_five for the paper's DomainNet", DIGITS),
        "Shakespeare": ("shakespeare", "Shakespeare", SETTING),
    }
    for name in options.listed("sets", SETS):
        if name == "Shakespeare" and not available(options):
            print("Shakespeare is left out: make its file with python -m papers.client2vec.shakespeare.\n")
            continue
        data, words, setting = sets[name]
        published = chosen(TABLE_1["DomainNet" if name == "Digits" else name], options)
        columns = list(next(iter(published.values())))
        rows = {
            base: [(case(options, title, data=data, base=base), numbers[title]) for title in columns]
            for base, numbers in published.items()
        }
        show(f"Table 1, {name}: {words}, best round", setting, columns, rows, options)


if __name__ == "__main__":
    main()

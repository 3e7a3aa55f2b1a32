"""Table 7: the other order of domains (most clients first) at factor 10; DomainNet where the folder has it."""

from papers.fedgcr.published import TABLE_7
from papers.fedgcr.variants import (
    METHODS,
    TITLES,
    WITHOUT_DOMAINNET,
    columns,
    has_domainnet,
    measure_and_write,
    options_for,
    variant,
)
from papers.options import script


@script
def main() -> None:
    """Print Table 7."""
    title = "Table 7: the other order of domains, factor 10"
    options = options_for(title)
    there = has_domainnet(options)
    shown = [data for data in TABLE_7 if data != "domainnet" or there]
    rows = {
        name: [(variant(options, data, 10, method, other_order=True), TABLE_7[data][name]) for data in shown]
        for name, method in METHODS.items()
    }
    measure_and_write(
        title, columns(*(f"{TITLES[data]}: " for data in shown)), rows, options, note="" if there else WITHOUT_DOMAINNET
    )


if __name__ == "__main__":
    main()

"""Table 3: seconds of the index and of the training, in all and until FedAvg's best accuracy is reached."""

from __future__ import annotations

from papers.client2vec.cases import case
from papers.client2vec.indexing import index_seconds
from papers.client2vec.published import TABLE_3
from papers.client2vec.settings import QUICK, domains_of, read
from papers.client2vec.variants import measure_all
from papers.options import script
from papers.tables import Cell, Numbers, Table, write_table

COLUMNS = ("index", "training", "training to FedAvg's best", "both to FedAvg's best")


def seconds_to(numbers: Numbers, accuracy: float) -> float | None:
    """Return the training seconds until an evaluation first has an accuracy; None if none has."""
    pairs = zip(numbers["curve"], numbers["clock"], strict=True)
    return next((clock for (_, reached), clock in pairs if reached >= accuracy), None)


@script
def main() -> None:
    """Print the table."""
    options = read("Table 3: seconds of the index and of the training")
    domains = domains_of(options)
    original = case(options, "original", data=domains.data)
    ours = case(options, "GLOBAL i+ii+iii", data=domains.data)
    results = measure_all([original, ours], options)
    index = index_seconds(ours.settings["index"], options) or 0.0
    rows: dict[str, list[Numbers]] = {}
    for title, variant, before in (("Client2Vec", ours, index), ("FedAvg", original, 0.0)):
        rows[title] = []
        for base, own in zip(results[original.name], results[variant.name], strict=False):
            if "clock" not in own or "best" not in base:
                continue
            reached = seconds_to(own, base["best"])
            both = None if reached is None else before + reached
            values = (before, own["clock"][-1], reached, both)
            rows[title].append(dict(zip(COLUMNS, values, strict=True)))
    table = Table(
        title="Table 3: seconds on one device",
        setting=f"{options.pick(domains.setting, QUICK)} FedAvg, GLOBAL. – where FedAvg's best is never reached.",
        columns=COLUMNS,
        rows={
            title: [Cell(title, paper=number, key=key) for key, number in zip(COLUMNS, TABLE_3[title], strict=True)]
            for title in rows
        },
        scale=1.0,
    )
    write_table(table, rows, options)


if __name__ == "__main__":
    main()

"""Table 11: further baselines, over an index trained FEDERATED on 128 samples a client for 20 epochs."""

from __future__ import annotations

from typing import Any

from papers.client2vec.cases import case
from papers.client2vec.indexing import index_seconds
from papers.client2vec.published import TABLE_11
from papers.client2vec.settings import CIFAR, QUICK, domains_of, read
from papers.client2vec.variants import measure_all
from papers.options import Options, script
from papers.tables import Cell, Numbers, Table, Variant, write_table

INDEX = {"epochs": 20, "local_samples": 128}
SECONDS = ("index, s", "training, s", "both, s")


def variants(options: Options) -> dict[str, Variant]:
    """Return the table's rows. Over Clustered Sampling the index is used in local training only, as in the paper."""
    domains = domains_of(options).data
    all_, local = "FEDERATED i+ii+iii", "FEDERATED iii"
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "FedProx": ("original", {"base": "FedProx"}),
        "FedProx + Client2Vec": (all_, {"base": "FedProx"}),
        "FedDisco": ("original", {"base": "FedDisco"}),
        "FedDisco + Client2Vec": (all_, {"base": "FedDisco"}),
        "Clustered Sampling": ("original", {"base": "Clustered Sampling"}),
        "Client2Vec sampling": ("FEDERATED i", {}),
        "Clustered Sampling + Client2Vec local training": (local, {"base": "Clustered Sampling"}),
        "FedProx, domains": ("original", {"base": "FedProx", "data": domains}),
        "FedProx + Client2Vec, domains": (all_, {"base": "FedProx", "data": domains}),
    }
    return {title: case(options, name, index=INDEX, label=title, **own) for title, (name, own) in cases.items()}


@script
def main() -> None:
    """Print the table."""
    options = read("Table 11: further baselines")
    rows = variants(options)
    results = measure_all(list(rows.values()), options)
    for variant in rows.values():
        index = index_seconds(variant.settings["index"], options) if "index" in variant.settings else 0.0
        results[variant.name] = [timed(numbers, index) for numbers in results[variant.name]]
    setting = options.pick(f"{CIFAR} The last two rows: {domains_of(options).setting}", QUICK)
    table = Table(
        title="Table 11: further baselines, best round",
        setting=f"{setting} Seconds on {options.device}.",
        columns=("accuracy", *SECONDS),
        rows={
            title: [
                Cell(rows[title].name, accuracy),
                *(Cell(rows[title].name, s, key, scale=1.0) for key, s in zip(SECONDS, seconds, strict=True)),
            ]
            for title, (accuracy, *seconds) in TABLE_11.items()
        },
    )
    write_table(table, results, options)


def timed(numbers: Numbers, index: float | None) -> Numbers:
    """Return a training's numbers with the seconds of its index, of itself, and of both."""
    if index is None or "seconds" not in numbers:
        return numbers
    values = (index, numbers["seconds"], index + numbers["seconds"])
    return {**numbers, **dict(zip(SECONDS, values, strict=True))}


if __name__ == "__main__":
    main()

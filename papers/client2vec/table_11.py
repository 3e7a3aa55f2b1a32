"""Table 11: further baselines, over an index trained FEDERATED on 128 samples a client for 20 epochs."""

from __future__ import annotations

from typing import Any

from papers.client2vec.cases import case, show
from papers.client2vec.indexing import index_seconds
from papers.client2vec.published import TABLE_11
from papers.client2vec.settings import CIFAR, PACS, read
from papers.options import Options, script
from papers.tables import Variant

INDEX = {"epochs": 20, "local_samples": 128}


def variants(options: Options) -> dict[str, Variant]:
    """Return the table's rows. Over Clustered Sampling the index is used in local training only, as in the paper."""
    all_, local = "FEDERATED i+ii+iii", "FEDERATED iii"
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "FedProx": ("original", {"base": "FedProx"}),
        "FedProx + Client2Vec": (all_, {"base": "FedProx"}),
        "FedDisco": ("original", {"base": "FedDisco"}),
        "FedDisco + Client2Vec": (all_, {"base": "FedDisco"}),
        "Clustered Sampling": ("original", {"base": "Clustered Sampling"}),
        "Client2Vec sampling": ("FEDERATED i", {}),
        "Clustered Sampling + Client2Vec local training": (local, {"base": "Clustered Sampling"}),
        "FedProx, domains": ("original", {"base": "FedProx", "data": "pacs"}),
        "FedProx + Client2Vec, domains": (all_, {"base": "FedProx", "data": "pacs"}),
    }
    return {title: case(options, name, index=INDEX, label=title, **own) for title, (name, own) in cases.items()}


@script
def main() -> None:
    """Print the table, and the seconds that the two indices took."""
    options = read("Table 11: further baselines")
    rows = variants(options)
    cells = {title: [(variant, TABLE_11[title][0])] for title, variant in rows.items()}
    show("Table 11: further baselines, best round", f"{CIFAR} The last two rows: {PACS}", ["accuracy"], cells, options)
    for title in ("FedProx + Client2Vec", "FedProx + Client2Vec, domains"):
        seconds = index_seconds(rows[title].settings["index"], options)
        if seconds is not None:
            print(f"index for {title}: {seconds:.1f} s on {options.device} (the paper's: {TABLE_11[title][1]} s)")


if __name__ == "__main__":
    main()

"""Table 2: other vectors, the index without a loss or a half, local training without a term (FedAvg, GLOBAL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from papers.client2vec.cases import case, show
from papers.client2vec.indexing import Spec, head_weights_spec, source_spec
from papers.client2vec.published import TABLE_2
from papers.client2vec.settings import CIFAR, WEIGHTS, read
from papers.client2vec.variants import AtlasUse, training
from papers.options import Options, script
from papers.tables import Variant

COLUMNS = ("i", "i+ii", "i+ii+iii")
CHANGES: dict[str, dict[str, Any]] = {
    "Without the orthogonality loss": {"index": {"losses": ["div", "sim", "recon"]}},
    "Without the text alignment": {"index": {"losses": ["div", "orth", "recon"]}},
    "Without the reconstruction": {"index": {"losses": ["div", "sim", "orth"]}},
    "Feature half only": {"uses": {"half": "feature"}},
    "Label half only": {"uses": {"half": "label"}},
    "Without orthogonality in local training": {"uses": {"lambda_o": 0.0}},
    "Client2Vec": {},
}


def variant(title: str, cases: str, options: Options) -> Variant:
    """Return the variant of one cell."""
    sources: Mapping[str, Spec] = {
        "Feature average": source_spec("cifar10", "feature-average", options),
        "Class prototypes": source_spec("cifar10", "class-prototypes", options),
        "Local model weights": head_weights_spec("cifar10", options),
    }
    if title not in sources:
        return case(options, f"GLOBAL {cases}", label=f"{title}, {cases}", **CHANGES[title])
    weight = WEIGHTS["global"]
    uses = {"tau": 1.0} | ({"lambda_o": weight, "lambda_d": weight} if "iii" in cases else {})
    return training(f"{title}, {cases}", options, use=AtlasUse(sources[title], cases, uses))


@script
def main() -> None:
    """Print the table."""
    options = read("Table 2: ablations of the index")
    rows = {
        title: [
            (None if number is None else variant(title, cases, options), number)
            for cases, number in zip(COLUMNS, numbers, strict=True)
        ]
        for title, numbers in TABLE_2.items()
    }
    setting = f"{CIFAR} FedAvg, GLOBAL. The classifier weights are those after one epoch on every client, once."
    show("Table 2: ablations, CIFAR-10, best round", setting, COLUMNS, rows, options)


if __name__ == "__main__":
    main()

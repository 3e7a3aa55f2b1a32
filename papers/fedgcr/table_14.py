"""Table 14: cluster accuracy and Avg by method of grouping. DomainNet is shown if it is in the folder.

The cluster accuracy is that of the last round's own groups. K-means and FINCH are shown on every data set; the paper
has them on DomainNet.
"""

from typing import Any

from papers.fedgcr.published import TABLE_14, Row
from papers.fedgcr.variants import TITLES, WITHOUT_DOMAINNET, has_domainnet, measure_and_write, options_for, variant
from papers.options import script


@script
def main() -> None:
    """Print Table 14."""
    title = "Table 14: FedGCR by method of grouping"
    options = options_for(title, seeds=(0,))
    there = has_domainnet(options)
    ours: dict[str, tuple[str, int, str, Row | tuple[None, None]]] = {**TABLE_14}
    for data in ("digit-five", "pacs"):
        for name, method in {"FINCH": "finch", "K-Means": "kmeans"}.items():
            ours[f"{TITLES[data]}, factor 10, {name}"] = (data, 10, method, (None, None))
    chosen: dict[str, dict[str, Any]] = {"gmm": {}, "finch": {"method": "finch"}, "kmeans": {"method": "kmeans"}}
    rows = {
        name: [(variant(options, data, factor, "fedgcr", **chosen[method]), papers)]
        for name, (data, factor, method, papers) in ours.items()
        if data != "domainnet" or there
    }
    keys = ("cluster_accuracy", "domain_mean")
    measure_and_write(
        title, ("cluster accuracy", "Avg"), rows, options, keys=keys, note="" if there else WITHOUT_DOMAINNET
    )


if __name__ == "__main__":
    main()

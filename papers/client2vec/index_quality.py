"""Does the index find the domains, and what does it know of the labels? Point by point, with commands.

    python -m papers.client2vec.index_quality --settings digits --encoder builtin
    python -m papers.client2vec.index_quality --settings digit_five,pacs,cifar10 --data-folder DATA

At the paper's width an epoch of a hundred clients takes a CPU core minutes: ``--feed-forward 64 --index-epochs 30`` is
the small version, which the tables of docs/evidence/client2vec.md say they are from.
"""

from __future__ import annotations

from fedatlas.atlas import Atlas
from papers.client2vec.indexing import Spec, atlas_file, index_spec, make_atlases, source_spec, whole_federation
from papers.client2vec.quality import quality
from papers.client2vec.settings import QUICK, SETTINGS, read
from papers.options import Options, script
from papers.tables import Cell, Table, write_table

COLUMNS = {
    "ARI": "feature_ari",
    "same domain": "feature_same",
    "other domain": "feature_other",
    "beta^l with label shares": "label_label_rank",
    "beta^f with label shares": "feature_label_rank",
    "nearest by beta^l": "label_neighbours",
    "nearest by beta^f": "feature_neighbours",
    "label from u": "u_label",
    "label from D": "d_label",
    "chance": "chance",
    "seconds": "seconds",
}


def specs(setting: str, options: Options) -> dict[str, Spec]:
    """Return the atlases that are compared, by the name of their row."""
    return {
        "mean of D": source_spec(setting, "feature-average", options),
        "GLOBAL": index_spec(setting, "global", options),
        "FEDERATED": index_spec(setting, "federated", options),
        "GLOBAL without L_div": index_spec(setting, "global", options, losses=["sim", "orth", "recon"]),
        "GLOBAL without L_orth": index_spec(setting, "global", options, losses=["div", "sim", "recon"]),
    }


@script
def main() -> None:
    """Print one table for each setting."""
    options = read("Does the index find the domains?", settings="digits,digit_five,pacs,cifar10")
    small = options.pick("", f"{QUICK} ")
    for setting in options.listed("settings", SETTINGS):
        rows = specs(setting, options)
        results = make_atlases(rows, options)
        federation = whole_federation(rows["GLOBAL"]["data"], options)
        for title, spec in rows.items():
            # Measured again from the saved vectors, so that a measure that came later is there too.
            atlas = Atlas.load(atlas_file(spec, options)) if results[title] else None
            results[title] = [{**numbers, **quality(atlas, federation)} for numbers in results[title] if atlas]
        table = Table(
            title=f"Index of {setting}: what it tells of the clients",
            setting=(
                f"{small}Encoder {rows['GLOBAL']['encoder']}, at most {rows['GLOBAL']['samples']} examples a client, "
                f"{rows['GLOBAL']['epochs']} epochs, {rows['GLOBAL']['settings'] or 'the settings of the paper'}."
            ),
            columns=tuple(COLUMNS),
            rows={title: [Cell(title, key=key) for key in COLUMNS.values()] for title in rows},
            scale=1.0,
            digits=2,
        )
        write_table(table, results, options)


if __name__ == "__main__":
    main()

"""What the index costs: its seconds beside those of a hundred rounds of FedAvg on the same device, and what it tells.

    python -m papers.client2vec.index_cost --device cuda --data-folder DATA

So many rounds are trained as ``--rounds`` says, nothing beside them, and a hundred are taken to last in proportion. The
encoding of the examples is not in it: it needs the encoder, which may not be where the training is.
"""

from __future__ import annotations

from fedatlas.errors import UsageError
from papers.client2vec.effect import length
from papers.client2vec.indexing import Spec, encoder_name, index_spec, make_atlases
from papers.client2vec.settings import CIFAR, MODELS, QUICK, STRATEGIES, read
from papers.client2vec.variants import measure_all, training
from papers.options import Options, one_of, script
from papers.tables import Cell, Numbers, Table, write_table

EPOCHS = (10, 100)
ROUNDS = 100
COLUMNS = {
    "seconds": ("seconds", 1.0),
    "% of the training": ("share", 100.0),
    "beta^l with label shares": ("label_label_rank", 1.0),
    "nearest by beta^l": ("label_neighbours", 1.0),
    "nearest by beta^f": ("feature_neighbours", 1.0),
    "label from u": ("u_label", 1.0),
    "loss": ("last_loss", 1.0),
}


def indices(options: Options) -> dict[str, Spec]:
    """Return the indices that are made, by the name of their row."""
    return {
        f"{title}, {epochs} epochs": index_spec("cifar10", strategy, options, epochs=epochs)
        for title, strategy in STRATEGIES.items()
        for epochs in EPOCHS
    }


def table(results: dict[str, list[Numbers]], trained: Numbers, options: Options) -> Table:
    """Return the table of the indices beside the training, whose share is added to their numbers."""
    whole = trained["seconds"] * ROUNDS / trained["rounds"]
    for made in results.values():
        made[:] = [{**numbers, "share": numbers["seconds"] / whole} for numbers in made]
    model = options.pick(options.extra["model"], "small CNN")
    words = (
        f"{ROUNDS} rounds of FedAvg ({model}, {options.extra['precision']}) take {whole:.1f} s on {options.device}, by "
        f"{trained['rounds']:.0f} of them; encoder {encoder_name(options)}."
    )
    return Table(
        title="What the index costs",
        setting=f"{QUICK if options.quick else CIFAR} {words}",
        columns=tuple(COLUMNS),
        rows={row: [Cell(row, key=key, scale=scale) for key, scale in COLUMNS.values()] for row in results},
        digits=2,
    )


@script
def main() -> None:
    """Make the indices, train, and print both."""
    options = read("What the index costs", rounds=20, length="paper", model="resnet18-cifar", precision="float32")
    one_of("model", options.extra["model"], MODELS)
    results = make_atlases(indices(options), options)
    model = {} if options.quick else {"model": MODELS[options.extra["model"]]}
    variant = training("FedAvg", options, changes=length(options, model))
    trained = measure_all([variant], options)[variant.name]
    if not trained or "seconds" not in trained[0]:
        raise UsageError(
            "nothing to compare the index with: FedAvg was not trained. See why above, and try again.",
            code="nothing-to-show",
        )
    write_table(table(results, trained[0], options), results, options)


if __name__ == "__main__":
    main()

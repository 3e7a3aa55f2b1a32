"""What the index costs: its seconds beside those of a hundred rounds of FedAvg on the same device.

    python -m papers.client2vec.index_cost --device cuda --index-epochs 100 --length short

The encoding of the examples is given apart: it needs the encoder, which may not be where the training is.
"""

from __future__ import annotations

from papers.client2vec.effect import length
from papers.client2vec.indexing import index_spec, make_atlases
from papers.client2vec.settings import MODELS, STRATEGIES, read
from papers.client2vec.variants import measure_all, training


def main() -> None:
    """Make the index, train, and print both."""
    options = read("What the index costs", length="paper", model="resnet18-cifar", index_epochs=100)
    specs = {title: index_spec("cifar10", strategy, options) for title, strategy in STRATEGIES.items()}
    atlases = make_atlases(specs, options)
    model = {} if options.quick else {"model": MODELS[options.extra["model"]]}
    variant = training("FedAvg", options, changes=length(options, model))
    run = measure_all([variant], options)[variant.name][0]
    print(f"FedAvg, {run['rounds']} rounds, {run['images']} images: {run['seconds']:.1f} s on {options.device}")
    for title, (numbers,) in atlases.items():
        share = numbers["seconds"] / run["seconds"]
        print(
            f"index {title}, {specs[title]['epochs']} epochs: {numbers['seconds']:.1f} s, {share:.2%} of the training"
        )


if __name__ == "__main__":
    main()

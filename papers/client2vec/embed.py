"""Encodes the examples of the experiments' clients, and keeps the vectors in small files that travel.

python -m papers.client2vec.embed --settings cifar10,pacs,digit_five --data-folder DATA
"""

from papers.client2vec.indexing import embed, limited, source_spec, whole_federation
from papers.client2vec.settings import read


def main() -> None:
    """Encode what the command line names."""
    options = read("Encode the examples of the experiments' clients", settings="cifar10,pacs,digit_five")
    for name in options.extra["settings"].split(","):
        spec = source_spec(name, "feature-average", options)
        found = embed(spec, limited(whole_federation(spec["data"], options), spec["samples"]), options)
        print(f"{name}: {int(found.examples.any(1).sum())} examples by {found.encoder}", flush=True)


if __name__ == "__main__":
    main()

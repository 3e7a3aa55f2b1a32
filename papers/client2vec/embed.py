"""Encodes the examples of the experiments' clients, and keeps the vectors in small files that travel.

python -m papers.client2vec.embed --settings cifar10,pacs,digit_five --data-folder DATA
"""

import time

from papers.client2vec.indexing import embed, limited, source_spec, whole_federation
from papers.client2vec.settings import SETTINGS, read
from papers.options import script


@script
def main() -> None:
    """Encode what the command line names."""
    options = read("Encode the examples of the experiments' clients", settings="cifar10,pacs,digit_five")
    for name in options.listed("settings", SETTINGS):
        spec = source_spec(name, "feature-average", options)
        federation = limited(whole_federation(spec["data"], options), spec["samples"])
        begun = time.perf_counter()
        found = embed(spec, federation, options)
        took = time.perf_counter() - begun
        print(f"{name}: {int(found.examples.any(1).sum())} examples by {found.encoder} in {took:.1f} s", flush=True)


if __name__ == "__main__":
    main()

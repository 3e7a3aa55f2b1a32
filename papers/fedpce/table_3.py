"""Table 3: how many numbers an embedding has."""

from papers.fedpce.ablations import ablation, base, changed
from papers.options import Options
from papers.tables import Variant

PAPER = {2: (70.52, 65.18), 4: (70.85, 65.67), 8: (70.68, 66.10), 16: (70.67, 65.64), 32: (70.71, 65.67)}
PAPER |= {64: (70.82, 66.72)}


def made(options: Options, embedding: int) -> Variant:
    """Return FedPCE with embeddings of a length."""
    return base(options) if embedding == 32 else changed(options, embedding=embedding)


if __name__ == "__main__":
    ablation("Table 3: length of the embedding, CIFAR-10", "E =", PAPER, made)

"""Table 5: how wide the perceptrons' hidden layer is."""

from papers.fedpce.ablations import ablation, base, changed
from papers.options import Options
from papers.tables import Variant

PAPER = {16: (70.66, 65.47), 64: (70.71, 65.67), 256: (71.17, 66.50)}


def made(options: Options, hidden: int) -> Variant:
    """Return FedPCE with perceptrons of a width."""
    return base(options) if hidden == 64 else changed(options, hidden=hidden)


if __name__ == "__main__":
    ablation("Table 5: width of the hidden layer, CIFAR-10", "hidden", PAPER, made)

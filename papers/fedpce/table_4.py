"""Table 4: how many clients share the data."""

from papers.fedpce.ablations import METHOD, TITLE, ablation, base
from papers.fedpce.setting import variant
from papers.options import Options
from papers.tables import Variant

PAPER = {12: (73.06, 65.69), 30: (70.71, 65.67), 60: (68.52, 68.10), 90: (66.50, 68.20)}


def made(options: Options, count: int) -> Variant:
    """Return FedPCE with so many clients, of which a fifth are held out."""
    if count == 30:
        return base(options)
    return variant(TITLE, METHOD, options, name=f"{TITLE} {METHOD}, {count} clients", num_clients=count)


if __name__ == "__main__":
    ablation("Table 4: number of clients, CIFAR-10", "clients:", PAPER, made)

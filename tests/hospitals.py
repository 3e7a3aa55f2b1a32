"""The four hospitals of heart as nodes of a network, each with a table of its own."""

from pathlib import Path

import torch

from fedatlas.config import Config
from fedatlas.data import Client, Federation, from_table, load_dataset
from fedatlas.flower import open_node

SETTINGS = [
    "data.label=num",
    "data.categorical=['cp', 'restecg', 'thal']",
    "data.classes={ healthy = [0], ill = [1, 2, 3, 4] }",
    "model.name=linear",
    "training.rounds=2",
    "training.batch_size=32",
    "training.least_batch=10",
    "flower.adapt={ rounds = 1, steps = 2 }",
    "flower.clients=4",
]


def hospitals(folder: Path) -> dict[str, dict[str, str]]:
    """Write the table of each hospital, without its name in it, and return the nodes' configs."""
    whole = load_dataset("heart")
    lines = (Path(__file__).parents[1] / "src/fedatlas/data/embedded/heart.csv").read_text().splitlines()
    nodes = {}
    for name in whole.owners:
        rows = [line.partition(",")[2] for line in (lines[0], *(x for x in lines if x.startswith(f"{name},")))]
        file = folder / f"{name}.csv"
        file.write_text("\n".join(rows) + "\n")
        nodes[name] = {"client": name, "data": str(file)}
    return nodes


def joined(nodes: dict[str, dict[str, str]], config: Config) -> Federation:
    """Return the nodes' rows as one federation, split as the nodes split them."""
    parts, clients, start = [], [], 0
    for name, settings in nodes.items():
        federation = open_node(settings, config).federation
        own = federation.clients[0]
        clients.append(Client(name=name, train=own.train + start, test=own.test + start))
        parts.append(federation.data)
        start += len(federation.data)
    table = parts[0].table
    assert table is not None
    whole = from_table(Path(nodes["cleveland"]["data"]).parent / "all.csv", client=None, **config.reading())
    assert whole.labels.tolist() == torch.cat([part.labels for part in parts]).tolist()
    return Federation(data=whole, clients=tuple(clients)).prepare()


def write_all(folder: Path, names: list[str]) -> None:
    texts = [(folder / f"{name}.csv").read_text().splitlines() for name in names]
    (folder / "all.csv").write_text("\n".join([texts[0][0], *(line for own in texts for line in own[1:])]) + "\n")

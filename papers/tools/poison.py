"""Prints how far clients that poison bring the model down, without and with each defence.

python -m papers.tools.poison --data digits --seeds 0,1,2 --out FILE
python -m papers.tools.poison --data cifar10 --folder FOLDER --seeds 0,1,2 --out FILE

Ten clients, the last one or two of which attack in every round:

    size     says that it has 10^14 examples; its change is honest
    scale    sends -1000 times its change
    huge     sends 1e30 in every coordinate
    flip     sends the negative of its change
    both     says that it has 10^14 examples, and sends the negative of its change

FOLDER holds cifar10.npz (x_train, y_train), of which 8,000 images are used, made 16x16, without the attack ``both``; of
the embedded digits the handwritten ones, made grey and 8x8. Accuracy is over the test parts of the honest clients after
the last round. Defences have their default settings. FILE keeps what is done, so that a stopped measurement goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas import Algorithm, Federation, Simulator, federate, from_arrays, play
from fedatlas.algorithms import Cap, capped, clipped, fedavg, krum, median, multi_krum, trimmed_mean
from fedatlas.client import LocalWork
from fedatlas.data import Dirichlet
from fedatlas.errors import TrainingError
from fedatlas.parts import SGD, Assignment, Upload
from fedatlas.seeds import generator
from fedatlas.training import evaluate, make_model
from papers.tools.small_digits import small_digits

CLIENTS = 10
CLAIMED = 10**14
ATTACKS = ("size", "scale", "huge", "flip", "both")
DEFENCES: Mapping[str, Algorithm] = {
    "none": fedavg(),
    "capped": capped(),
    "clipped": clipped(),
    "clipped, capped": clipped(capped()),
    "median": median(),
    "trimmed_mean": trimmed_mean(),
    "krum": krum(),
    "multi_krum": multi_krum(),
}


class Setting(NamedTuple):
    """What is trained on one data set."""

    model: str
    options: dict[str, Any]
    images: int
    rounds: int
    lr: float
    batch: int
    attacks: tuple[str, ...] = ATTACKS

    def cases(self) -> list[tuple[str, int]]:
        """Return the attacks that are tried, with the number of attackers."""
        return [("honest", 0), *((attack, count) for count in (1, 2) for attack in self.attacks)]


SETTINGS = {
    "digits": Setting("mlp", {"hidden": (32,)}, images=1600, rounds=20, lr=0.3, batch=16),
    "cifar10": Setting("cnn", {"width": 16}, images=8000, rounds=30, lr=0.1, batch=8, attacks=ATTACKS[:4]),
}
WITHOUT_CAP = {"capped": "none", "clipped, capped": "clipped"}
"""Defences that are the same as others where no client counts more than the cap."""


class Poisoned(Simulator):
    """A simulator whose last clients attack."""

    def attacked_by(self, attack: str, attackers: int) -> Poisoned:
        """Let the last clients attack, and return the simulator."""
        self.attack, self.bad = attack, set(range(CLIENTS - attackers, CLIENTS))
        if attack in ("size", "both"):
            self.roster = [replace(c, num_examples=CLAIMED) if c.id in self.bad else c for c in self.roster]
        return self

    def train(self, assignments: Sequence[Assignment]) -> Iterator[Upload]:
        """Yield the uploads, those of attackers spoiled."""
        for upload in super().train(assignments):
            yield spoiled(upload, self.attack) if upload.client in self.bad else upload


def spoiled(upload: Upload, attack: str) -> Upload:
    """Return what an attacker sends in place of an honest upload."""
    factor = {"scale": -1000.0, "flip": -1.0, "both": -1.0}.get(attack)
    if factor is not None:
        upload = replace(upload, change={name: factor * tensor for name, tensor in upload.change.items()})
    if attack == "huge":
        upload = replace(upload, change={name: torch.full_like(t, 1e30) for name, t in upload.change.items()})
    return replace(upload, num_examples=CLAIMED) if attack in ("size", "both") else upload


def make_federation(data: str, folder: Path | None, seed: int) -> Federation:
    """Return ten clients with skewed labels."""
    if data == "digits":
        examples = small_digits()
    else:
        assert folder is not None, "--folder is needed"
        with np.load(folder / "cifar10.npz") as arrays:
            images, labels = arrays["x_train"][:20_000], arrays["y_train"][:20_000]
        halved = images.reshape(-1, 16, 2, 16, 2, 3).mean((2, 4)).round().astype(np.uint8)
        examples = from_arrays(halved, labels, name="cifar10")
    chosen = torch.randperm(len(examples), generator=generator(seed, "images"))[: SETTINGS[data].images]
    return federate(examples.take(chosen), Dirichlet(num_clients=CLIENTS, alpha=1.0), seed=seed)


def cap_is_idle(federation: Federation, attack: str) -> bool:
    """Return whether no client counts more than the cap, so that a capped run has the bits of one without."""
    sizes = torch.tensor([float(len(client.train)) for client in federation])
    return attack not in ("size", "both") and float(sizes.max()) <= Cap.times * float(sizes.quantile(0.5))


def accuracy(federation: Federation, data: str, algorithm: Algorithm, attack: str, attackers: int, seed: int) -> float:
    """Return the accuracy of honest clients after the last round; 0 where the model broke."""
    setting = SETTINGS[data]
    algorithm = algorithm.with_optimizer(SGD(lr=setting.lr))
    network = make_model(setting.model, setting.options, federation, algorithm, seed)
    work = LocalWork(epochs=1, batch_size=setting.batch)
    with Poisoned(algorithm, network, federation, work=work, seed=seed, workers=1) as clients:
        clients.attacked_by(attack, attackers)
        try:
            for found in play(algorithm, clients, rounds=setting.rounds, seed=seed):
                state = found.state
            scores = [score for score in evaluate(algorithm, clients, state) if score.client not in clients.bad]
        except TrainingError:
            return 0.0
    return sum(score.accuracy * score.num_examples for score in scores) / sum(score.num_examples for score in scores)


def measure(data: str, folder: Path | None, seeds: Sequence[int], out: Path) -> dict[str, float]:
    """Measure what FILE does not hold yet, and return all of it."""
    found: dict[str, float] = json.loads(out.read_text()) if out.exists() else {}
    cases = SETTINGS[data].cases()
    for seed in seeds:
        federation = make_federation(data, folder, seed)
        for attack, count in cases:
            for name, algorithm in DEFENCES.items():
                key = f"{data}/{attack}/{count}/{name}/{seed}"
                if key not in found:
                    same = name in WITHOUT_CAP and cap_is_idle(federation, attack)
                    twin = f"{data}/{attack}/{count}/{WITHOUT_CAP.get(name)}/{seed}"
                    found[key] = found[twin] if same else accuracy(federation, data, algorithm, attack, count, seed)
                    print(f"{key}: {100 * found[key]:.1f}", flush=True)
                    out.write_text(json.dumps(found, indent=1))
    return found


def table(found: Mapping[str, float], data: str, seeds: Sequence[int]) -> str:
    """Return the accuracies as a table of Markdown, in percent."""
    lines = [f"| {data} | {' | '.join(DEFENCES)} |", "|---|" + "---|" * len(DEFENCES)]
    for attack, count in SETTINGS[data].cases():
        cells = []
        for name in DEFENCES:
            values = [100 * found[f"{data}/{attack}/{count}/{name}/{seed}"] for seed in seeds]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append("broke" if max(values) == 0 else f"{mean(values):.1f}{spread}")
        title = "all honest" if not count else f"{attack}, {count} of {CLIENTS}"
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(SETTINGS), default="digits")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, default=Path("poison.json"))
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    print(table(measure(given.data, given.folder, seeds, given.out), given.data, seeds))


if __name__ == "__main__":
    main()

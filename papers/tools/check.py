"""Prints how often ``fedatlas check`` finds wrong data, and how often it accuses clients whose data are right.

python -m papers.tools.check --data FOLDER --sets digits,mnist,mnist+usps+svhn --federations 40

FOLDER holds mnist.npz and, if asked for, other sets of that form (x_train, y_train; or train_webp, train_offset and
train_y); the digits and heart are embedded. Sets that are joined by + are the domains of one federation.
Thresholds were set on seeds below 20000; seeds from 80000 on are measured. Federations have decoys, which are right but
rare: clients of 30 images, of four classes, and of other looks or domains.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np
import sklearn.datasets
import torch
from PIL import Image

from fedatlas.atlas import (
    DISTINCT,
    FEWEST,
    Examination,
    Summary,
    describe_columns,
    examine,
    find_faults,
    find_inverted,
    summarise,
)
from fedatlas.data import Client, Federation, NaturalId, federate, load_dataset
from fedatlas.seeds import numpy_generator
from papers.tools.shifted_pools import Kind, Pool, Recipe, load_pool
from papers.tools.verdict import shuffled

NOISES = (0.1, 0.2, 0.4)
SKEWS = (None, 0.3)
DOMAIN = 3000
"""Images of each set where several are joined."""
OTHER_LOOKS = ("turned 90", "inverted", "inverted")


@dataclass
class Tally:
    """What was found in the federations of one cell."""

    wrong: int = 0
    """Clients with wrong labels."""
    found: int = 0
    named: int = 0
    """Of those found: with the right kind and, of swaps, with classes that were swapped only."""
    telling: int = 0
    """Of those with swapped names: with two examples of the two classes at least, as fewer cannot tell."""
    told: int = 0
    """Of these, found."""
    federations: int = 0
    accused: int = 0
    """Federations in which a client with right labels was accused."""
    decoys: int = 0
    decoys_accused: int = 0
    seconds: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        """Return one row of the table."""
        found = f"{self.found} of {self.wrong} ({100 * self.found / self.wrong:.0f} %)" if self.wrong else "–"
        found += f"; {self.told} of {self.telling} with two examples" if self.telling else ""
        return (
            f"| {name} | {found} | {self.named if self.wrong else '–'} | {self.accused} of {self.federations} "
            f"| {self.decoys_accused} of {self.decoys} |"
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Clients of one federation: the usual ones first, of which the first may be wrong, then decoys."""

    kinds: Sequence[Kind]
    images: int
    usual: int

    def spoilt(self, count: int, noise: float, swap: tuple[int, ...] | None) -> Setting:
        """Return the setting with wrong labels at the first clients."""
        changed = [
            replace(kind, noise=noise, naming=kind.naming if swap is None else swap) for kind in self.kinds[:count]
        ]
        return replace(self, kinds=[*changed, *self.kinds[count:]])


def clean_settings(pool: Pool, rng: np.random.Generator) -> Iterator[tuple[str, Setting]]:
    """Yield federations of every kind in which nothing is wrong."""
    images = 75 if pool.domains is not None else 150
    order = [str(look) for look in rng.permutation(pool.looks)] if pool.domains is not None else ["plain"]
    usual = Kind(order[0])
    others = [Kind(look) for look in (order[1:3] + order[2:3] if pool.domains is not None else OTHER_LOOKS)]
    small, few = [replace(usual, images=30)] * 3, [replace(usual, classes=4)] * 2
    yield "decoys", Setting(kinds=[*[usual] * 12, *small, *few, *others], images=images, usual=12)
    yield "one kind", Setting(kinds=[usual] * 20, images=images, usual=20)
    if pool.domains is not None:
        kinds = [Kind(look) for look in pool.looks] * (20 // len(pool.looks))
        yield "all domains", Setting(kinds=kinds, images=images, usual=len(kinds))
    else:
        kinds = [Kind(look) for look in ("plain", "turned 90", "inverted", "noisy")] * 5
        yield "four looks", Setting(kinds=kinds, images=images, usual=20)


def load(name: str, folder: Path | None) -> Pool:
    """Return the pool of a set, or of several as domains, all as colour images of 32 x 32."""
    if "+" not in name:
        return load_pool(name, folder)
    assert folder is not None
    images, labels, domains = [], [], []
    for domain in name.split("+"):
        shown, called = _read(folder / f"{domain}.npz")
        images.append(shown)
        labels.append(called)
        domains += [domain] * len(called)
    return Pool(name, np.concatenate(images), np.concatenate(labels), np.array(domains))


def _read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return some images of a file at 32 x 32 in colour, and their labels."""
    with np.load(file) as arrays:
        labels = arrays["y_train" if "y_train" in arrays else "train_y"].reshape(-1).astype(np.int64)
        chosen = np.sort(numpy_generator(0, "pool").choice(len(labels), min(DOMAIN, len(labels)), replace=False))
        if "x_train" in arrays:
            shown = [Image.fromarray(one) for one in arrays["x_train"][chosen]]
        else:
            packed, starts = arrays["train_webp"], arrays["train_offset"]
            shown = [Image.open(io.BytesIO(packed[starts[i] : starts[i + 1]].tobytes())) for i in chosen]
    return np.stack([np.asarray(one.convert("RGB").resize((32, 32))) for one in shown]), labels[chosen]


def examined(pool: Pool, setting: Setting, alpha: float | None, seed: int) -> tuple[Examination, Federation, float]:
    """Return what is found in one federation, the federation, and the seconds after encoding."""
    federation, embeddings = pool.draw(Recipe(kinds=setting.kinds, images=setting.images, alpha=alpha), seed)
    begun = time.perf_counter()
    names = [client.name for client in federation]
    found = examine(summarise(federation, embeddings.examples), names, federation.data.classes)
    return found, federation, time.perf_counter() - begun


def measure(
    pool: Pool, part: str, alpha: float | None, seeds: range, *, noise: float = 0.0, swap: bool = False
) -> Tally:
    """Return the tally of one cell."""
    tally = Tally()
    for seed in seeds:
        rng = numpy_generator(seed, "check recipes")
        setting = dict(clean_settings(pool, rng))[part]
        count = 2 if noise else int(swap)
        renamed = shuffled(rng, 2) if swap else None
        found, federation, took = examined(pool, setting.spoilt(count, noise, renamed), alpha, seed)
        accused = {int(own.client.split("-")[1]): own for own in found.suspects}
        tally.wrong += count
        tally.found += sum(i in accused for i in range(count))
        kind = "labels-noisy" if noise else "labels-swapped"
        tally.named += sum(i in accused and accused[i].kind == kind for i in range(count))
        if renamed is not None:
            moved = [k for k, name in enumerate(renamed) if k != name]
            counts = torch.bincount(federation.data.labels[federation.clients[0].train], minlength=len(renamed))
            telling = int(counts[moved].sum()) >= FEWEST
            tally.telling += telling
            tally.told += telling and 0 in accused
        tally.federations += 1
        tally.accused += any(i >= count for i in accused)
        tally.decoys += len(setting.kinds) - setting.usual
        tally.decoys_accused += sum(i >= setting.usual for i in accused)
        tally.seconds.append(took)
    return tally


def measure_pool(pool: Pool, seeds: range, only: str = "") -> None:
    """Print the cells of one data set whose names contain ``only``."""
    for alpha in SKEWS:
        skew = "" if alpha is None else f", Dirichlet {alpha}"
        clean = list(dict(clean_settings(pool, numpy_generator(0, "check recipes"))))
        cells = [(f"{part}, nothing wrong", part, 0.0, False) for part in clean]
        cells += [(f"two clients with {100 * noise:.0f} % noise", "decoys", noise, False) for noise in NOISES]
        cells.append(("one client with two names swapped", "decoys", 0.0, True))
        for name, part, noise, swap in cells:
            title = f"{pool.name}: {name}{skew}"
            if only in title:
                print(measure(pool, part, alpha, seeds, noise=noise, swap=swap).line(title), flush=True)


def heart() -> Federation:
    """Return the four hospitals."""
    return federate(load_dataset("heart"), NaturalId(min_samples=1), seed=0)


def resampled(federation: Federation, rng: np.random.Generator, most: int | None) -> Federation:
    """Return the federation with every client's examples drawn again, with repetition."""
    clients = []
    for client in federation:
        own = torch.cat([client.train, client.test])
        drawn = own[torch.from_numpy(rng.integers(0, len(own), min(len(own), most or len(own))))]
        clients.append(Client(name=client.name, train=drawn, test=client.test[:0]))
    return replace(federation, clients=tuple(clients))


def inverted(federation: Federation, client: int) -> Federation:
    """Return the federation with one client's labels inverted."""
    own = torch.cat([federation.clients[client].train, federation.clients[client].test]).unique()
    labels = federation.data.labels.clone()
    labels[own] = 1 - labels[own]
    return replace(federation, data=replace(federation.data, labels=labels))


def measure_heart(seeds: range) -> None:
    """Print how often an inverted hospital is named, and columns that stand for missing."""
    whole = heart()
    for most in (None, 50):
        for wrong in (None, *range(len(whole))):
            named = others = 0
            for seed in seeds:
                drawn = resampled(whole, numpy_generator(seed, "heart"), most)
                federation = drawn if wrong is None else inverted(drawn, wrong)
                summary = summarise(federation, federation.data.inputs)
                assert isinstance(summary, Summary)
                found = find_inverted(summary).inverted
                named += wrong in found
                others += bool({*found} - {wrong})
            size = "full size" if most is None else f"{most} patients each"
            who = "none" if wrong is None else whole.clients[wrong].name
            print(f"| heart, {size}, inverted: {who} | {named} | {others} | {len(seeds)} |", flush=True)


def number_tables() -> dict[str, np.ndarray]:
    """Return tables of measurements, (rows, columns): some columns of heart, and scikit-learn's bundled ones."""
    table = heart().data.table
    assert table is not None
    columns = [table.columns.index(name) for name in ("age", "trestbps", "thalach")]
    values = table.values[np.isfinite(table.values[:, columns]).all(1)][:, columns]
    # Zero pressure is a fault of the data themselves.
    found = {"heart": values[(values > 0).all(1)]}
    for name in ("breast_cancer", "wine", "diabetes", "iris"):
        found[name] = np.asarray(getattr(sklearn.datasets, f"load_{name}")().data, np.float64)
    return found


def measure_columns(seeds: range) -> None:
    """Print how often codes and scales that were planted in a column of a table are found, and false ones."""
    planted: dict[str, tuple[float | None, float | None] | None] = {
        "nothing": None,
        **{f"code {code:g}": (code, None) for code in (0.0, -1.0, -9.0, 99.0, 999.0)},
        **{f"factor {factor:g}": (None, factor) for factor in (10.0, 0.0555, 2.54, 0.4536)},
    }
    for table, values in number_tables().items():
        wide = [j for j in range(values.shape[1]) if len(np.unique(values[:, j])) >= DISTINCT]
        for name, fault in planted.items():
            found = false = 0
            for seed in seeds:
                rng = numpy_generator(seed, "columns")
                parts = np.array_split(rng.permutation(values), 4)
                column = wide[int(rng.integers(len(wide)))]
                if fault is not None and fault[0] is not None:
                    parts[0][rng.random(len(parts[0])) < 0.1, column] = fault[0]
                elif fault is not None and fault[1] is not None:
                    parts[0][:, column] *= fault[1]
                faults = {
                    (one.client, one.column) for one in find_faults([describe_columns(part) for part in parts])[0]
                }
                found += fault is not None and (0, column) in faults
                false += bool(faults - ({(0, column)} if fault is not None else set()))
            print(f"| {table}, {name} | {found} | {false} | {len(seeds)} |", flush=True)


def measure_time(pool: Pool) -> None:
    """Print the seconds for many clients."""
    kind = Kind(pool.looks[0])
    for clients in (100, 1000):
        setting = Setting(kinds=[kind] * clients, images=150, usual=clients)
        seconds = median(examined(pool, setting, None, seed)[2] for seed in range(100, 103))
        print(f"| {clients} clients of 150 images | {seconds:.1f} s |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of mnist.npz and others")
    parser.add_argument(
        "--sets", default="digits", help="comma separated: digits, or NAME of NAME.npz, or several of them joined by +"
    )
    parser.add_argument("--parts", default="labels,heart,columns,time", help="comma separated")
    parser.add_argument("--federations", type=int, default=40, help="of each cell")
    parser.add_argument("--first-seed", type=int, default=80_000)
    parser.add_argument("--only", default="", help="cells about labels whose names contain this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.federations)
    parts = options.parts.split(",")
    pools = [load(name, options.data) for name in options.sets.split(",")]
    if "labels" in parts:
        print("| federation | found | with the right kind | federations with a false accusation | decoys accused |")
        print("|---|---|---|---|---|", flush=True)
        for pool in pools:
            measure_pool(pool, seeds, options.only)
    for part, measure_part in (("heart", measure_heart), ("columns", measure_columns)):
        if part in parts:
            print(f"\n| {part} | found | others named | of |\n|---|---|---|---|", flush=True)
            measure_part(seeds)
    if "time" in parts:
        print("\n| federation | after encoding |\n|---|---|", flush=True)
        measure_time(pools[0])


if __name__ == "__main__":
    main()

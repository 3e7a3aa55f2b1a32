"""What the network costs: seconds a round beside the simulator's, and bytes each way, by algorithm."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedatlas.atlas.atlas import Atlas
from fedatlas.config import Config
from fedatlas.data import ByDomain, Federation, federate, load_dataset
from fedatlas.flower.demo import INDEX
from fedatlas.flower.export import write_npz
from fedatlas.flower.init import write_app
from fedatlas.flower.launch import LocalFederation
from fedatlas.progress import Silent
from fedatlas.runs import Run
from fedatlas.tensor_files import atomic_write
from fedatlas.terminal import output
from fedatlas.training import train_run
from fedatlas.types import Tensors

CNN = ("model.name=cnn", "model.norm=instance")
PROMPTED = ("model.name=prompted_vit",)
CASES: dict[str, tuple[str, ...]] = {
    "fedavg": CNN,
    "scaffold": CNN,
    "feddyn": CNN,
    "moon": CNN,
    "fedbn": CNN,
    "fediir": CNN,
    "fedmix": CNN,
    "client2vec+fedavgm": (*CNN, "algorithm.name=fedavgm", f"atlas.make={INDEX}"),
    "fedgcr": PROMPTED,
    "fedpce": CNN,
}
"""The algorithms that are measured, with the settings that each needs."""


@dataclass(frozen=True)
class Cost:
    """What one algorithm costs over the network."""

    name: str
    parameters: int
    network: float
    """Seconds a round, median, over loopback; training and test."""
    simulator: float
    down: int
    """Bytes that a client gets in a round, mean."""
    up: int
    before: int
    """Bytes each way before round 1, per client: the atlas, or what the algorithm must know first."""
    same: bool
    """Whether both ended with the same bits."""

    def words(self) -> dict[str, str]:
        """Return the row of a table."""
        return {
            "algorithm": self.name,
            "parameters": f"{self.parameters:,}",
            "network": f"{self.network:.1f}",
            "simulator": f"{self.simulator:.2f}",
            "overhead": f"{self.network - self.simulator:.1f}",
            "bytes_down": f"{self.down:,}",
            "bytes_up": f"{self.up:,}",
            "bytes_before_round_1": f"{self.before:,}",
            "same_bits": "yes" if self.same else "NO",
        }


def measured_federation(count: int) -> Federation:
    """Return clients of 100 digits each."""
    federation = federate(load_dataset("digits"), ByDomain(clients_per_domain=max(1, -(-count // 5))))
    chosen = enumerate(federation.clients[:count])
    clients = (replace(c, name=f"client-{i}", train=c.train[:100], test=c.test[:40], domain=None) for i, c in chosen)
    return replace(federation, clients=tuple(clients))


def measure_overhead(*, rounds: int, num_nodes: int, cases: Sequence[str] = tuple(CASES)) -> list[Cost]:
    """Run each algorithm over real processes on loopback and in the simulator, one worker, and compare."""
    federation = measured_federation(num_nodes)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        names = [client.name for client in federation.clients]
        with LocalFederation(top / "network", nodes=names) as local:
            for i, name in enumerate(names):
                local.start_node(name, data=str(write_npz(federation, i, top / f"{name}.npz")))
            for case in cases:
                output.print(f"{case} ...", highlight=False)
                rows.append(_measure(case, federation, local, top / case, rounds))
    return rows


def _measure(case: str, federation: Federation, local: LocalFederation, folder: Path, rounds: int) -> Cost:
    own = [f"training.rounds={rounds}", "training.batch_size=20", f"flower.clients={len(federation)}"]
    named = [] if any(s.startswith("algorithm.") for s in CASES[case]) else [f"algorithm.name={case}"]
    config = Config.load(None, [*own, *named, *CASES[case]])
    local.run(write_app(folder / "app", config, run_folder=folder / "run"), timeout=1800)
    run = Run(folder / "run")
    here = _simulated(config, federation, folder, run)
    sizes = [entry for line in run.rounds for entry in line["bytes"].values()]
    first = json.loads((run.folder / "before.json").read_text())["bytes"].values()
    return Cost(
        name=case,
        parameters=int(run.resolved["model"]["num_parameters"]),
        network=_median(run),
        simulator=_median(here),
        down=round(sum(entry["down"] for entry in sizes) / len(sizes)),
        up=round(sum(entry["up"] for entry in sizes) / len(sizes)),
        before=round(sum(entry["down"] + entry["up"] for entry in first) / len(federation)),
        same=_same(run.parameters(), here.parameters()),
    )


def _simulated(config: Config, federation: Federation, folder: Path, run: Run) -> Run:
    model, options = config.model()
    atlas = Atlas.load(run.folder / "atlas.safetensors") if config.atlas_settings() is not None else None
    return train_run(
        federation,
        config.algorithm(atlas),
        model=model,
        model_options=options,
        work=config.work(),
        plan=config.plan(),
        seeds=config.seeds(),
        device="cpu",
        workers=1,
        folder=folder / "here",
        resume=False,
        overwrite=False,
        progress=Silent(),
    )


def _median(run: Run) -> float:
    seconds = sorted(entry["train"] + entry["evaluate"] for entry in run.timings)
    return float(seconds[len(seconds) // 2])


def _same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(bool((one[name] == other[name]).all()) for name in one)


def report(rows: Sequence[Cost], to: Path, *, rounds: int, num_nodes: int) -> None:
    """Write the table as Markdown, with the command and the machine."""
    table = [row.words() for row in rows]
    titles = [title.replace("_", " ") for title in table[0]]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(row.values()) + " |" for row in table]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = (
        "# What the network costs\n\n"
        f"`fedatlas flower measure --nodes {num_nodes} --rounds {rounds}`: a SuperLink and {num_nodes} SuperNodes as "
        f"processes of one machine ({cores} cores, {platform.machine()}), TLS and node keys, seed 0, 100 digits a "
        "client. Seconds are the median of the rounds, training and test together; the simulator has one worker. "
        "Bytes are a client's, per round, test included, without Flower's envelope.\n\n" + "\n".join(lines) + "\n"
    )
    to.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(to, text.encode())

"""Measure the costs of the network: seconds of a round beside the simulator's, and bytes each way, by algorithm.

    python benchmarks/flower.py --nodes 5 --rounds 3 --out docs/evidence/flower.md

Seconds are measured over real processes on loopback. Bytes do not depend on where a node runs, so they are counted with
the same messages in one process.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from fedatlas.atlas import Atlas
from fedatlas.cli import print_rows, say
from fedatlas.config import Config
from fedatlas.data import ByDomain, Federation, federate, load_dataset
from fedatlas.flower import (
    INDEX,
    PACKAGE,
    RUN,
    LocalFederation,
    policy_text,
    serve,
    write_app,
    write_npz,
)
from fedatlas.flower.node.app import make_client_app
from fedatlas.parts import Tensors
from fedatlas.runs import Run, RunFolder, atomic_write
from fedatlas.testing import InProcessGrid
from fedatlas.training import Machine, Silent, train_run

CNN = ("model.name=cnn", "model.norm=instance")
PROMPTED = ("model.name=prompted_vit",)
USES = 'atlas.use=["sample", "aggregate", "train"]'
CASES: dict[str, tuple[str, ...]] = {
    "fedavg": CNN,
    "scaffold": CNN,
    "feddyn": CNN,
    "moon": CNN,
    "fedbn": CNN,
    "fediir": CNN,
    "fedmix": CNN,
    "client2vec+fedavgm": (*CNN, "algorithm.name=fedavgm", f"atlas.make={INDEX}", USES),
    "fedgcr": PROMPTED,
    "fedpce": CNN,
}
"""The algorithms that are measured, with the settings that each needs."""
TIMED = ("fedavg",)


@dataclass(frozen=True)
class Sizes:
    """What one algorithm sends, per client and round; means, in bytes."""

    name: str
    parameters: int
    """Of the whole model, frozen ones included."""
    training: tuple[int, int]
    """Down and up, for surveys and training of a client that took part."""
    test: tuple[int, int]
    before: tuple[int, int]
    """Before round 1: an atlas, or what the algorithm must know first."""
    same: bool
    """Whether the run ended with the simulator's bits."""

    def words(self) -> dict[str, str]:
        """Return the row of a table."""
        row = {"algorithm": self.name, "parameters": f"{self.parameters:,}"}
        for title, (down, up) in (("round", self.training), ("test", self.test), ("before", self.before)):
            row |= {f"{title}_down": f"{down:,}", f"{title}_up": f"{up:,}"}
        return {**row, "same_bits": "yes" if self.same else "NO"}


@dataclass(frozen=True)
class Seconds:
    """Seconds a round, training and test, median."""

    name: str
    network: float
    simulator: float
    load: float
    """The machine's load average when both were done; far above the number of cores, ratios say more than seconds."""
    processors: Mapping[str, float]
    """Seconds of the processors in a round, by kind of process; means."""

    def words(self) -> dict[str, str]:
        """Return the row of a table."""
        return {
            "algorithm": self.name,
            "network": f"{self.network:.1f}",
            "simulator": f"{self.simulator:.2f}",
            "overhead": f"{self.network - self.simulator:.1f}",
            "ratio": f"{self.network / self.simulator:.1f}",
            "load_average": f"{self.load:.1f}",
        }


PROCESSES = {
    "the processes for messages": "starter import serve",
    "the nodes' workers": "worker import serve",
    "SuperExecs": "flower-superexec",
    "SuperNodes": "flower-supernode",
    "the SuperLink": "flower-superlink",
    "the run's server": "flwr-serverapp",
}
"""How a kind of process is known by its command."""


def processor_seconds() -> Counter[str]:
    """Return the seconds that the processes of a federation and their ended children have taken, by kind."""
    found: Counter[str] = Counter()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, times = (folder / "cmdline").read_text(), (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        words = command.replace("\0", " ")
        kind = next((kind for kind, part in PROCESSES.items() if part in words), None)
        if kind is not None:
            found[kind] += sum(int(ticks) for ticks in times[11:15])  # type: ignore[assignment]
    return found


@contextmanager
def processors_by_round(rounds: Path) -> Iterator[list[Counter[str]]]:
    """Note the processors' seconds whenever the record of rounds has grown."""
    noted: list[Counter[str]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if rounds.exists() and len(rounds.read_bytes().splitlines()) > len(noted):
                noted.append(processor_seconds())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield noted
    finally:
        over.set()
        watcher.join()


def _of_a_round(noted: Sequence[Counter[str]]) -> dict[str, float]:
    """Return the mean seconds of the rounds after the first, which also starts things."""
    ticks = os.sysconf("SC_CLK_TCK") * max(1, len(noted) - 1)
    return {kind: (noted[-1][kind] - noted[0][kind]) / ticks for kind in PROCESSES} if noted else {}


def measured_federation(count: int) -> Federation:
    """Return clients of 100 digits each."""
    federation = federate(load_dataset("digits"), ByDomain(clients_per_domain=max(1, -(-count // 5))))
    chosen = enumerate(federation.clients[:count])
    clients = (replace(c, name=f"client-{i}", train=c.train[:100], test=c.test[:40], domain=None) for i, c in chosen)
    return replace(federation, clients=tuple(clients))


def measure_sizes(*, num_nodes: int, cases: Sequence[str] = tuple(CASES)) -> list[Sizes]:
    """Play two rounds of each algorithm over Flower's messages in this process, and count."""
    federation = measured_federation(num_nodes)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        top, policy = Path(scratch), _policy(Path(scratch))
        nodes = {}
        for i, client in enumerate(federation.clients):
            data = write_npz(federation, i, top / f"{i}.npz")
            nodes[client.name] = {"client": client.name, "data": str(data), "policy": policy}
        for case in cases:
            say(f"{case}: bytes ...")
            rows.append(_count(case, federation, nodes, top / case))
    return rows


def _policy(folder: Path) -> str:
    """Write a policy that allows every algorithm, and return its path."""
    (folder / "policy.toml").write_text(policy_text(everything=True), encoding="utf-8")
    return str(folder / "policy.toml")


def _count(case: str, federation: Federation, nodes: Mapping[str, Mapping[str, str]], folder: Path) -> Sizes:
    config = _config(case, len(federation), rounds=2)
    app = write_app(folder / "app", config)
    grid = InProcessGrid(make_client_app(app / PACKAGE / RUN), nodes)
    with redirect_stdout(io.StringIO()):
        run = serve(config, grid, folder / "run")
    # The first round is not tested, the second is.
    trained = _mean([line["bytes"] for line in run.rounds[:1]])
    both = _mean([line["bytes"] for line in run.rounds[1:]])
    before = json.loads((run.folder / "before.json").read_text())["bytes"]
    return Sizes(
        name=case,
        parameters=int(run.resolved["model"]["num_parameters"]),
        training=trained,
        test=(both[0] - trained[0], both[1] - trained[1]),
        before=_mean([before]) if before else (0, 0),
        same=_same(run.parameters(), simulated(config, federation, folder / "here", _atlas(config, run)).parameters()),
    )


def measure_seconds(*, rounds: int, num_nodes: int, cases: Sequence[str] = TIMED) -> list[Seconds]:
    """Run algorithms over real processes on loopback, with TLS and keys, and in the simulator with one worker."""
    federation = measured_federation(num_nodes)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        names = [client.name for client in federation.clients]
        with LocalFederation(top / "network", nodes=names) as local:
            for i, name in enumerate(names):
                local.start_node(name, data=str(write_npz(federation, i, top / f"{name}.npz")), policy=_policy(top))
            for case in cases:
                say(f"{case}: seconds ...")
                config = Config.from_text(_config(case, num_nodes, rounds).to_toml(), ["training.evaluate_every=1"])
                folder = top / case
                app = write_app(folder / "app", config, run_folder=folder / "run")
                with processors_by_round(folder / "run" / "rounds.jsonl") as noted:
                    local.run(app, timeout=1800)
                run = Run(folder / "run")
                here = simulated(config, federation, folder / "here", _atlas(config, run))
                rows.append(Seconds(case, _median(run), _median(here), os.getloadavg()[0], _of_a_round(noted)))
    return rows


def _config(case: str, num_nodes: int, rounds: int) -> Config:
    own = [f"training.rounds={rounds}", "training.evaluate_every=2", "training.batch_size=20"]
    named = [] if any(s.startswith("algorithm.") for s in CASES[case]) else [f"algorithm.name={case}"]
    return Config.load(None, [*own, f"flower.clients={num_nodes}", *named, *CASES[case]])


def _mean(rounds: Sequence[Mapping[str, Mapping[str, int]]]) -> tuple[int, int]:
    found = [entry for line in rounds for entry in line.values()]
    down, up = (round(sum(entry[way] for entry in found) / len(found)) for way in ("down", "up"))
    return down, up


def _atlas(config: Config, run: Run) -> Atlas | None:
    return Atlas.load(run.folder / "atlas.safetensors") if config.atlas_settings() is not None else None


def simulated(config: Config, federation: Federation, folder: Path, atlas: Atlas | None = None) -> Run:
    """Return the run that the simulator makes of the same config and data."""
    return train_run(
        federation,
        config.algorithm(atlas),
        config.run_settings(machine=Machine(workers=1)),
        RunFolder(folder=folder),
        progress=Silent(),
    )


def _median(run: Run) -> float:
    seconds = sorted(entry["train"] + entry["evaluate"] for entry in run.timings)
    return float(seconds[len(seconds) // 2])


def _same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(bool((one[name] == other[name]).all()) for name in one)


def report(sizes: Sequence[Sizes], seconds: Sequence[Seconds], to: Path, *, rounds: int, num_nodes: int) -> None:
    """Write the tables as Markdown, with the command and the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"""# What the network costs

`python benchmarks/flower.py --nodes {num_nodes} --rounds {rounds}`, seed 0, {num_nodes} clients with 100 training and
40 test digits each, one local epoch of batches of 20; {cores} cores ({platform.machine()}). See the
[guide](../flower.md).

## Bytes, by algorithm

Means per client: in a round (surveys and training), for a test, and before round 1. Names and values of messages are
counted, without Flower's envelope; a float has four bytes. Every run ended with the simulator's bits.

{_table([row.words() for row in sizes])}

## Seconds

Medians of a round, training and test together, over a SuperLink and {num_nodes} SuperNodes as processes of one machine,
with TLS and node keys; the simulator has one worker. A test goes with the next training's message. The load average is
the machine's at the end; if it is far above the number of cores, other programs ran at the same time.

{_table([row.words() for row in seconds])}

**Where it goes.** The work itself is the simulator's column. An idle SuperNode asks for messages every three seconds,
and looks for the reply of its process every half second, so a round of several nodes waits about three seconds. Every
message passes six programs: the run's server, the SuperLink (which keeps it in a database), the SuperNode, the process
that Flower starts for it, and back. Those are processor seconds, a mean of the rounds after the first:

{_table([{"processor seconds a round": kind, "": f"{own:.2f}"} for kind, own in seconds[0].processors.items()])}
"""
    to.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(to, text.encode())


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    titles = [title.replace("_", " ") for title in rows[0]]
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in rows)])


def main() -> None:
    """Measure, print, and write the page where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, help="a Markdown file for the tables")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each run; default 3")
    parser.add_argument("--nodes", type=int, default=5, help="how many nodes; default 5")
    given = parser.parse_args()
    sizes = measure_sizes(num_nodes=given.nodes)
    print_rows([row.words() for row in sizes], "bytes down to and up from a client, means")
    seconds = measure_seconds(rounds=given.rounds, num_nodes=given.nodes)
    print_rows([row.words() for row in seconds], "seconds a round, training and test, medians")
    if given.out is not None:
        report(sizes, seconds, given.out, rounds=given.rounds, num_nodes=given.nodes)
        print(f"tables: {given.out}")


if __name__ == "__main__":
    main()

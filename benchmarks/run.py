"""Measure fedatlas beside its peers: all of them in one run, taking turns, and print medians and ratios.

    python benchmarks/run.py                        # workloads A, B and C, three repetitions
    python benchmarks/run.py --workloads A --repetitions 5 --out results

Peers are installed into benchmarks/.environments by this command. A figure is the median over repetitions of the
median round, the first round of each left out. Ratios travel between machines, seconds do not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import python_of
from workloads import WORKLOADS

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"


@dataclass(frozen=True)
class Contender:
    """One way to train a workload."""

    name: str
    script: str
    variant: str = ""
    environment: str | None = None
    """Whose; None is ours."""
    only: str = "ABC"
    """The workloads it is for."""

    def measure(self, workload: str, rounds: int | None) -> dict[str, Any]:
        """Run it once in its own process and return what it told."""
        python = Path(sys.executable) if self.environment is None else python_of(self.environment)
        command = [str(python), str(HERE / "contenders" / self.script), workload]
        command += ["--variant", self.variant] if self.variant else []
        command += ["--rounds", str(rounds)] if rounds else []
        paths = [str(HERE)] if self.environment else [str(SOURCE), str(HERE)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        began = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{self.name} on {workload} failed:\n{done.stderr[-3000:]}")
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**told, "round": statistics.median(told["seconds"][1:]), "process": time.perf_counter() - began}


CONTENDERS = (
    Contender("fedatlas", "ours.py"),
    Contender("fedatlas, bfloat16", "ours.py", "bfloat16", only="BC"),
    Contender("pfl", "pfl_research.py", environment="pfl"),
    Contender("Flower, data resident", "flower.py", "resident", "flower"),
    Contender("Flower, as documented", "flower.py", "documented", "flower"),
    Contender("naive loop", "plain.py", "naive"),
    Contender("centralised, same steps", "plain.py", "centralised"),
)


def measure(
    workloads: Sequence[str], repetitions: int, rounds: int | None, contenders: Sequence[Contender] = CONTENDERS
) -> dict[str, Any]:
    """Return all measurements: repetition by repetition, so that a busy machine is busy for all."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in workloads}
    for repetition in range(repetitions):
        for workload in workloads:
            for contender in (c for c in contenders if workload in c.only or workload == "tiny"):
                told = contender.measure(workload, rounds)
                found[workload].setdefault(contender.name, []).append(told)
                line = f"{repetition + 1}/{repetitions} {workload} {contender.name}: {told['round']:.4f} s a round"
                print(line, file=sys.stderr, flush=True)
    return {"machine": machine(), "workloads": found}


def machine() -> dict[str, Any]:
    """Return what this is measured on."""
    name = platform.processor() or platform.machine()
    cpu = Path("/proc/cpuinfo")
    if cpu.exists():
        name = next((line.split(":")[1].strip() for line in cpu.read_text().splitlines() if "model name" in line), name)
    return {"cpu": name, "cores": os.cpu_count(), "system": platform.system()}


def tables(results: Mapping[str, Any]) -> str:
    """Return one markdown table a workload, with our ratio to each contender."""
    about = results["machine"]
    lines = [f"{about['cpu']}, {about['cores']} cores, {about['system']}", ""]
    for workload, contenders in results["workloads"].items():
        rounds = {name: statistics.median(told["round"] for told in all_told) for name, all_told in contenders.items()}
        ours = {name: seconds for name, seconds in rounds.items() if name.startswith("fedatlas")}
        lines += [
            f"**{workload}**",
            "",
            "| | ms a round | spread | " + " | ".join(f"{name} / it" for name in ours) + " | peak MB |",
            "|---|---|---|" + "---|" * (len(ours) + 1),
        ]
        for name, seconds in rounds.items():
            every = [told["round"] for told in contenders[name]]
            ratios = " | ".join(f"{own / seconds:.3f}" for own in ours.values())
            peak = statistics.median(told["peak_mb"] for told in contenders[name])
            spread = f"{1e3 * min(every):.0f} to {1e3 * max(every):.0f}"
            lines.append(f"| {name} | {1e3 * seconds:.1f} | {spread} | {ratios} | {peak:.0f} |")
        for name in ours:
            share = statistics.median(told["server"] for told in contenders[name])
            lines += ["", f"Of a round of {name}, the server's side is {share:.1%}."]
        lines.append("")
    versions: dict[str, str] = {}
    for contenders in results["workloads"].values():
        for every in contenders.values():
            versions |= every[0]["versions"]
    return "\n".join([*lines, ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))])


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="A,B,C", help=f"of {', '.join(WORKLOADS)}; or tiny")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="rounds a measurement; default is the workload's")
    parser.add_argument("--contenders", help="only those whose name holds one of these, comma separated")
    parser.add_argument("--out", type=Path, help="a folder for results.json and results.md")
    options = parser.parse_args()
    chosen = [
        c for c in CONTENDERS if not options.contenders or any(n in c.name for n in options.contenders.split(","))
    ]
    results = measure(options.workloads.split(","), options.repetitions, options.rounds, chosen)
    text = tables(results)
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "results.json").write_text(json.dumps(results, indent=1))
        (options.out / "results.md").write_text(text + "\n")


if __name__ == "__main__":
    main()

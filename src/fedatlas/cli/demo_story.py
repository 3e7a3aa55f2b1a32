"""The two stories of the demo: each step is a command of fedatlas, run as it is printed, and figures come from runs.

The digits: twelve offices, in four groups that call some digits by other names (the partition ``permuted-labels``). The
hearts: four hospitals, of which one has its labels turned round by the demo.
"""

from __future__ import annotations

import contextlib
import csv
import io
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import tomli_w
import typer
from typer.main import get_command

from fedatlas.atlas.doctor.check import check as examine
from fedatlas.atlas.doctor.diagnosis import Diagnosis
from fedatlas.cli.check import check, print_diagnosis
from fedatlas.cli.terminal import check_writable, remark, say
from fedatlas.cli.train import train
from fedatlas.config.config import Config
from fedatlas.data.loading.load import EMBEDDED
from fedatlas.report import write_page
from fedatlas.runs.run import Run

DIGITS: dict[str, Any] = {
    "data": {
        "source": "digits",
        "domains": ["handwritten"],
        "partition": {"name": "permuted-labels", "num_clients": 12},
    },
    "model": {"name": "mlp"},
    "optimizer": {"name": "sgd", "lr": 0.05},
    "training": {"batch_size": 16, "evaluate_every": 5},
}
HEART: dict[str, Any] = {
    "data": {
        "client": "hospital",
        "label": "num",
        "classes": {"healthy": [0], "ill": [1, 2, 3, 4]},
        "categorical": ["cp", "restecg", "thal"],
    },
    "training": {"evaluate_every": 5},
}
INVERTED = "hungarian"
"""The hospital whose labels the demo turns round."""


@dataclass(frozen=True)
class Stage:
    """Where the demo's files go, and how its trainings run."""

    folder: Path
    rounds: int
    workers: int | None

    def config(self, name: str, settings: Mapping[str, Any]) -> Path:
        """Write a config into the folder and return its path."""
        check_writable("--folder", self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        given = {**settings, "training": {**settings["training"], "rounds": self.rounds}}
        path = self.folder / f"{name}.toml"
        path.write_text(tomli_w.dumps(given), encoding="utf-8")
        return path

    def diagnose(self, config: Path) -> Diagnosis:
        """Check the clients of a config, print what the command would, and return it."""
        given = f"--config {shlex.quote(str(config))}"
        say(f"$ fedatlas check {given}")
        found = examine(Config.load(config).federation(), given=given)
        print_diagnosis(found)
        return found

    def train(self, command: str, name: str) -> Run:
        """Run a command that trains and return the run; its own words are printed only if it fails."""
        folder = self.folder / name
        command = f"{command} --folder {shlex.quote(str(folder))}"
        say(f"$ {command}")
        _, *words = shlex.split(command)
        words += ["--overwrite", *([] if self.workers is None else ["--workers", str(self.workers)])]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = _run(words)
        if status:
            remark(said.getvalue())
            raise typer.Exit(int(status))
        return Run(folder)


def tell_of_digits(stage: Stage) -> Path:
    """Show clients that name classes differently: one model against the advice; return the page."""
    say("Twelve offices read digits, and some call a few digits by other names", bold=True)
    config = stage.config("digits", DIGITS)
    found = stage.diagnose(config)
    say("\nOne model for all, every client alone, and then the first advice", bold=True)
    plain = f"fedatlas train --config {shlex.quote(str(config))}"
    one = stage.train(plain, "digits/one")
    alone = stage.train(f"{plain} --algorithm local", "digits/alone")
    advised = stage.train(_advice(found, lambda command: command.startswith("fedatlas train ")), "digits/advised")
    _print_gain(one, alone, advised)
    title = "Handwritten digits of twelve offices"
    return write_page(stage.folder / "digits.html", runs=[one, advised, alone], diagnosis=found, title=title)


def tell_of_heart(stage: Stage) -> Path:
    """Show a hospital whose labels are turned round: the check names it, and the others' model agrees."""
    say("\nFour hospitals, real patients; this demo has turned the labels of one round", bold=True)
    table = _table(stage.folder / "heart.csv", inverted=INVERTED)
    config = stage.config("heart", {**HEART, "data": {"source": str(table), **HEART["data"]}})
    found = stage.diagnose(config)
    came = stage.train(f"fedatlas train --config {shlex.quote(str(config))}", "heart/as-it-came")
    title = "Heart disease in four hospitals"
    page = write_page(stage.folder / "heart.html", runs=[came], diagnosis=found, title=title)
    inverted = [own.client for own in found.suspects if own.kind == "labels-inverted"]
    if not inverted:
        say("The check did not find it this time.")
        return page
    name = inverted[0]
    say(f"\nThe check names {name}. Train without it, and ask the others' model", bold=True)
    without = stage.train(_advice(found, lambda command: name in command), f"heart/without-{name}")
    share = _accuracies(without)[name]
    say(f"The others' model agrees with {share:.0%} of {name}'s labels: turned round, with {1 - share:.0%}.")
    right = _table(stage.folder / "heart-repaired.csv")
    good = stage.config("heart-repaired", {**HEART, "data": {"source": str(right), **HEART["data"]}})
    say("\nAnd with the labels repaired", bold=True)
    plain = f"fedatlas train --config {shlex.quote(str(good))}"
    repaired = stage.train(plain, "heart/repaired")
    _print_repair(came, repaired, stage.train(f"{plain} --algorithm local", "heart/alone"), name)
    return page


def _table(path: Path, inverted: str | None = None) -> Path:
    """Write the embedded table of patients, with one hospital's labels turned round: healthy 0 is 1, ill is 0."""
    with (EMBEDDED / "heart.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    label = head.index("num")
    for row in rows:
        if row[0] == inverted:
            row[label] = "1" if row[label] == "0" else "0"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return path


def _advice(found: Diagnosis, fits: Callable[[str], bool]) -> str:
    return next(own.command for own in found.advice if fits(own.command))


def _run(words: list[str]) -> Any:
    """Run a command in this process and return its exit status."""
    commands = typer.Typer()
    for command in (train, check):  # with one alone, typer would take its name for an argument
        commands.command()(command)
    return get_command(commands).main(words, standalone_mode=False)


def _accuracies(run: Run) -> dict[str, float]:
    """Return each client's accuracy in the last evaluation; the file holds one line a client and round."""
    last = run.last["round"]
    return {own["client"]: own["accuracy"] for own in run.clients if own["round"] == last and "accuracy" in own}


def _print_gain(one: Run, alone: Run, advised: Run) -> None:
    before, apart, after = _accuracies(one), _accuracies(alone), _accuracies(advised)
    least = min(before, key=lambda name: before[name])
    gain = 100 * (fmean(after.values()) - fmean(before.values()))
    say(
        f"One model: {fmean(before.values()):.0%}. Each alone: {fmean(apart.values()):.0%}. As advised: "
        f"{fmean(after.values()):.0%}, {gain:+.0f} points over one model (mean over {len(before)} clients, one seed)."
    )
    spread = f"{before[least]:.0%} by one model, {apart[least]:.0%} alone, {after[least]:.0%} as advised"
    say(f"The worst served, {least}: {spread}.")


def _print_repair(came: Run, repaired: Run, alone: Run, name: str) -> None:
    before, after, apart = _accuracies(came), _accuracies(repaired), _accuracies(alone)
    say(
        f"{name}: {before[name]:.0%} by its wrong labels, {after[name]:.0%} by the right ones.\n"
        f"Mean over {len(before)} hospitals: {fmean(before.values()):.0%} as it came, {fmean(after.values()):.0%} "
        f"repaired; each alone, repaired, {fmean(apart.values()):.0%} (one seed)."
    )

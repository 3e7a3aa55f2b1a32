"""Pages for tests in a browser: of a small training that the page's commands can repeat, and of made-up records."""

from pathlib import Path

import numpy as np
from typer.testing import CliRunner, Result

from fedatlas.cli.app import app
from fedatlas.report import write_page
from fedatlas.runs import Run
from report.run_folders import client, write_run

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "'; touch owned; '",
    '"quoted" $(touch owned) `touch owned`',
    "back\\slash\\u0022",
    "שם <b>מימין</b> לשמאל",
    "{{data}} ${1} {{script}}",
    "long " + "x" * 300,
    "=1+1",
    "Ünï¢ødé ☃ 漢字",
)
"""Names that would do harm where a page or a command took them for more than a name."""


def invoke(*words: object) -> Result:
    """Run a command of fedatlas."""
    return CliRunner().invoke(app, [str(word) for word in words])


def write_arrays(path: Path, names: tuple[str, ...]) -> Path:
    """Write small images of three classes, of clients with these names; each has its own shade."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(3), 10 * len(names))
    owner = np.repeat(np.arange(len(names)), 30)
    x = rng.uniform(0, 60, (len(y), 6, 6, 3)) + 60 * y[:, None, None, None] + 4 * owner[:, None, None, None]
    np.savez(path, x=x.astype(np.uint8), y=y, owner=np.array(names)[owner])
    return path


def write_training(folder: Path, names: tuple[str, ...]) -> tuple[Run, Path]:
    """Train on clients with these names; return the run and its page, with a diagnosis."""
    data = write_arrays(folder / "mine.npz", names)
    settings = ["--model", "mlp", "--set", "model.hidden=[8]", "--set", "training.rounds=3", "--workers", "1"]
    run, page = folder / "run", folder / "page.html"
    done = invoke("train", "--data", data, *settings, "--folder", run)
    assert done.exit_code == 0, done.output
    done = invoke("check", run, "--html", page)
    assert done.exit_code in (0, 1, 4), done.output
    return Run(run), page


def write_records(folder: Path, count: int, *, rounds: int = 4, algorithms: int = 2) -> Path:
    """Write a page about so many clients of five domains, whose records are made up."""
    rng = np.random.default_rng(count)
    clients = [
        client(
            f"client-{i:05d}",
            f"domain {i % 5}",
            held_out=i % 50 == 49,
            num_test=50,
            labels=rng.integers(1, 40, 10).tolist(),
        )
        for i in range(count)
    ]
    skill = rng.integers(10, 45, count)
    vectors = rng.normal(size=(count, 32)) + 3 * np.eye(5, 32)[np.arange(count) % 5]
    runs = [
        write_run(
            folder / f"run-{k}",
            clients,
            lambda number, c, k=k: int(min(50, skill[c] + number + k)),  # type: ignore[misc]
            algorithm=("fedavg", "fedprox", "moon")[k],
            rounds=rounds,
            vectors=vectors.astype(np.float32),
        )
        for k in range(algorithms)
    ]
    return write_page(folder / "page.html", runs=runs)

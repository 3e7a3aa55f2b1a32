"""The demo: every algorithm on the embedded digits, domains imbalanced, some clients held out."""

from pathlib import Path

from fedatlas.algorithms import ALGORITHMS, build_algorithm
from fedatlas.config import Config
from fedatlas.progress import make_progress
from fedatlas.report import write_report
from fedatlas.runs import Run
from fedatlas.training import train_run

DEMO = {
    "data": {
        "source": "digits",
        "partition": {"name": "domain-imbalance", "factor": 5},
        "test": "domain",
        "held_out": 3,
    },
    "model": {"name": "cnn"},
    "optimizer": {"name": "sgd", "lr": 0.05},
    "training": {"epochs": 1, "batch_size": 32},
}


def run_demo(folder: Path, *, workers: int | None = None, rounds: int = 25) -> tuple[list[Run], Path]:
    """Train all algorithms on the same clients; return the runs and the report."""
    config = Config.load(None, (f"training.rounds={rounds}",), **DEMO)
    federation = config.federation()
    model, options = config.model()
    runs = []
    for name in ALGORITHMS:
        config = Config.load(None, (f"training.rounds={rounds}",), **DEMO, algorithm={"name": name})
        algorithm = config.algorithm()
        runs.append(
            train_run(
                federation,
                algorithm,
                model=model,
                model_options=options,
                work=config.work(),
                plan=config.plan(),
                seeds=config.seeds(),
                device="cpu",
                workers=workers,
                folder=folder / name,
                resume=False,
                overwrite=True,
                progress=make_progress(None, build_algorithm(name).name, rounds),
            )
        )
    return runs, write_report(runs, folder / "report.html", title="fedatlas demo")

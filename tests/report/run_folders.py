"""Run folders written by hand, in the form that training writes them."""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from claims import write_manifest
from fedatlas.data import Origin
from fedatlas.parts import ClientScore
from fedatlas.runs import PORTRAITS, Run
from fedatlas.training import summarize


def client(
    name: str,
    domain: str | None = None,
    *,
    held_out: bool = False,
    num_test: int = 100,
    labels: Sequence[int] = (30, 10),
) -> dict[str, Any]:
    num_train = sum(labels)
    sizes = {"num_train": num_train, "num_test": num_test, "label_counts": list(labels)}
    return {"name": name, "domain": domain, "held_out": held_out, **sizes}


def write_run(
    folder: Path,
    clients: Sequence[dict[str, Any]],
    correct: Callable[[int, int], int],
    *,
    algorithm: str = "fedavg",
    options: dict[str, Any] | None = None,
    rounds: int = 3,
    planned: int | None = None,
    evaluated: Sequence[int] | None = None,
    seed: int = 0,
    data: str = "toy",
    partition: str = "by hand",
    origin: Origin | None = None,
    fingerprint: str = "same",
    seconds: float = 0.5,
    images: np.ndarray | None = None,
    vectors: np.ndarray | None = None,
) -> Run:
    """Write a run in which client ``c`` has ``correct(round, c)`` right test examples."""
    folder.mkdir(parents=True)
    write_manifest(folder)
    num_classes = len(clients[0]["label_counts"])
    resolved = {
        "federation": {
            "data": data,
            "kind": "image",
            "partition": partition,
            "origin": None if origin is None else asdict(origin),
            "form": {"shape": [3, 8, 8], "vocabulary": [], "mean": [], "std": []},
            "classes": [str(i) for i in range(num_classes)],
            "fingerprint": hashlib.md5(fingerprint.encode()).hexdigest(),
            "clients": list(clients),
        },
        "model": {"name": "cnn", "options": {}, "num_parameters": 1234},
        "algorithm": {
            "name": algorithm,
            "objective": [{"part": "CrossEntropy", **(options or {})}],
            "optimizer": {"part": "SGD", "lr": 0.1},
        },
        "training": {"epochs": 1, "batch_size": 32, "rounds": planned or rounds, "cohort": None, "evaluate_every": 1},
        "seeds": {"partition": seed, "model": seed, "sampling": seed, "batches": seed},
        "machine": {"device": "cpu", "name": "hand", "workers": 1, "cores": 2},
        "versions": {"python": "3.11", "fedatlas": "0.1.0"},
    }
    (folder / "resolved.json").write_text(json.dumps(resolved))
    domains = {i: c["domain"] for i, c in enumerate(clients)}
    lines, client_lines, timings = [], [], []
    for number in range(1, rounds + 1):
        trained = [i for i, c in enumerate(clients) if not c["held_out"]]
        line: dict[str, Any] = {"round": number, "cohort": trained, "answered": trained, "train_loss": 2.0 / number}
        scores = []
        if evaluated is None or number in evaluated:
            scores = [
                ClientScore(
                    client=i,
                    num_examples=c["num_test"],
                    values={"accuracy": correct(number, i) / c["num_test"], "loss": 1.0 / number},
                )
                for i, c in enumerate(clients)
            ]
            line["evaluation"] = summarize([s for s in scores if not clients[s.client]["held_out"]], domains)
            if held_out := summarize([s for s in scores if clients[s.client]["held_out"]], domains):
                line["held_out"] = held_out
        lines.append(line)
        for score in scores:
            c = clients[score.client]
            entry = {"round": number, "client": c["name"], "domain": c["domain"], "held_out": c["held_out"]}
            client_lines.append(entry | {"accuracy": score.accuracy, "loss": score.loss, "num_tested": c["num_test"]})
        timings.append({"round": number, "train": seconds, "evaluate": 0.1})
    for name, records in (("rounds", lines), ("clients", client_lines), ("timings", timings)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if vectors is not None:
        arrays = {"vectors": vectors}
        if images is not None:
            arrays |= {"images": images, "pictured": np.arange(len(images))}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        (folder / PORTRAITS).write_bytes(buffer.getvalue())
    return Run(folder)


FOUR = (
    client("anna", "x"),
    client("bert", "x"),
    client("cleo", "y", num_test=200),
    client("dora", "y", held_out=True),
)
"""Two domains, one client held out."""


def four_correct(number: int, c: int) -> int:
    """Anna has 90 of 100 right (100 in round 2), Bert 70 of 100, Cleo 100 of 200 and Dora, held out, 30 of 100."""
    return (100 if number == 2 else 90, 70, 100, 30)[c]

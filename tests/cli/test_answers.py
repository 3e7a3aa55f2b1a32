"""The command line answers a question about names, options and files before it loads torch."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

MOST_SECONDS = 5.0
"""Generous: on an idle machine an answer takes a third of a second, with torch it takes two more."""
CODE = """
import sys
from fedatlas.cli.app import main
sys.argv = ["fedatlas", *sys.argv[1:]]
try:
    main()
finally:
    loaded = [name for name in ("torch", "numpy", "scipy", "sklearn", "matplotlib") if name in sys.modules]
    print("LOADED", loaded, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--help", "Commands:"),
        ("train --help", "--rounds"),
        ("flower --help", "keys"),
        ("list", "algorithms"),
        ("list algorithms", "fedprox"),
        ("list models", "resnet18"),
        ("list datasets", "cifar10"),
        ("list settings", "training.rounds"),
        ("list algorithm", "Did you mean 'algorithms'"),
        ("train --algorithm fedpox", "Did you mean 'fedprox'"),
        ("compare fedavg fedpox", "Did you mean 'fedprox'"),
        ("train --model resnet81", "Did you mean 'resnet18'"),
        ("train --data digit", "Did you mean 'digits'"),
        ("train --engine lop", "Did you mean 'loop'"),
        ("train --set algorithm.nu=1", "fedavg takes no options, got 'nu'"),
        ("train -a fedprox --set algorithm.nu=1", "unknown option of fedprox 'nu'. Did you mean 'mu'?"),
        ("train --set model.name=cnn --set model.wdth=1", "unknown option of model 'cnn' 'wdth'"),
        ("train --set optimizer.lrr=1", "unknown option of sgd 'lrr'"),
        ("train --set data.partition=dirichle", "Did you mean 'dirichlet'"),
        ("train --set training.round=3", "Did you mean 'rounds'"),
        ("train --set training.rounds=0", "training.rounds must be at least 1, got 0"),
        ("train --config nowhere.toml", "there is no config nowhere.toml"),
        ("train --data nowhere.npz", "nowhere.npz: there is no such file"),
        ("train --data nowhere/photos", "nowhere/photos: there is no such file or folder"),
        ("train --atlas nowhere.safetensors", "there is no atlas at nowhere.safetensors"),
        ("check --help", "--json"),
        ("check --data digit", "Did you mean 'digits'"),
        ("check --encoder clipp", "Did you mean 'clip'"),
        ("check nowhere", "nowhere holds no run"),
        ("check nowhere --data digits", "leave out --data"),
        ("map --run nowhere", "nowhere holds no run"),
        ("map --source feature-averag", "Did you mean 'feature-average'"),
        ("map --encoder clipp", "Did you mean 'clip'"),
        ("adapt nowhere", "nowhere holds no run"),
        ("report nowhere", "nowhere holds no run"),
    ],
)
def test_an_answer_comes_before_torch_is_loaded(arguments: str, said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, *arguments.split()]
    began = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    took = time.monotonic() - began
    assert "LOADED []" in done.stderr
    assert said in done.stdout + done.stderr
    assert took < MOST_SECONDS
    assert list(tmp_path.iterdir()) == []

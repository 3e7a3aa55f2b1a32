"""The peers' environments: each in its own folder, with the same torch as ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / ".environments"
PEERS = {"pfl": ["pfl==0.6.0"], "flower": ["flwr[simulation]==1.41.0"]}


def python_of(peer: str, folder: Path = FOLDER) -> Path:
    """Return the interpreter of a peer's environment, which is set up if it is not there."""
    place = folder / peer
    python = place / "bin" / "python"
    ready = place / "ready"
    if not ready.exists():
        print(f"setting up {peer} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        constraints = folder / "constraints.txt"
        constraints.write_text(f"torch=={_our_torch()}\n")
        # torch first and pinned, as in the Makefile: asked for as a range, pip would take a build with CUDA.
        for packages in (["torch", "numpy"], PEERS[peer]):
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints]
            subprocess.run([*command, *packages], check=True)
        ready.touch()
    return python


def _our_torch() -> str:
    import torch

    return str(torch.__version__).split("+")[0]

"""A newcomer's part: it gets the shared model, tunes the personal parameters on its node, and sends the results."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedatlas.adapting.adapter import Adapter
from fedatlas.adapting.result import Adapted
from fedatlas.errors import UsageError
from fedatlas.flower.node.request import Request
from fedatlas.flower.protocol.messages import BUFFERS, SHARED, plain, tensors
from fedatlas.parts.types import ServerState
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.files import atomic_write, private_folder
from fedatlas.runs.run import CONFIG, Run
from fedatlas.runs.schema import RESOLVED

RECORD = "record"
NETWORK = "adapted.safetensors"
STAYS = ("embedding", "curve", "kept", "why", "gain")
"""What the record of an adapted client holds and does not leave the node."""


def adapt(request: Request, received: RecordDict) -> RecordDict:
    """Tune and test on the node; the reply holds the results, not the tuned parameters."""
    shared, buffers = (tensors(received.array_records[name]) for name in (SHARED, BUFFERS))
    options: dict[str, Any] = json.loads(request.about["adapt"])
    _check_model(request)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if request.node.memory is None else request.folder()
        run = write_run(folder / "model", request, shared, buffers)
        adapter = Adapter(run, data=request.federation, algorithm=request.algorithm(), device=str(request.device))
        found: Adapted = adapter.adapt(0, **options)
        found.save(folder / NETWORK)
    record = {name: value for name, value in found.describe().items() if name not in STAYS}
    return RecordDict({RECORD: plain({"json": json.dumps(record)})})


def _check_model(request: Request) -> None:
    """Raise UsageError if the record that came with the message names another model than the run's config."""
    name, options = request.config.model(request.federation.data)
    stated = json.loads(str(request.about["resolved"]))["model"]
    if (stated["name"], stated["options"]) != (name, json.loads(json.dumps(options))):
        raise UsageError(
            f"the record of the run names the model {stated['name']!r}, its config {name!r}.",
            code="run-differs",
            got=stated["name"],
            known=name,
        )


def write_run(folder: Path, request: Request, shared: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> Run:
    """Save the received model as a run folder, which ``fedatlas adapt --data`` takes too."""
    store = CheckpointStore(folder / "checkpoints")
    private_folder(store.folder)
    for old in store.folder.iterdir():
        old.unlink()
    atomic_write(folder / CONFIG, request.config.to_toml().encode())
    atomic_write(folder / RESOLVED, str(request.about["resolved"]).encode())
    state = ServerState(round=int(request.about["round"]), shared=shared, buffers=buffers, memory={})
    store.save(state, {}, set(), {})
    return Run(folder)

"""A newcomer's part: it gets the shared model, tunes the personal parameters on its node, and sends a few figures.

A message may choose how much is tuned, how long and how fast, and nothing else: which examples make a step is the run's
config's choice and the policy's. What leaves is over all training examples, or over all test examples.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from fedatlas.adapting.adapter import Adapter
from fedatlas.adapting.result import Adapted
from fedatlas.client.data import ResidentData
from fedatlas.client.runner import EVALUATION_BATCH
from fedatlas.config.schema import NewcomerTuning
from fedatlas.errors import UsageError
from fedatlas.flower.node.policy import PolicyError
from fedatlas.flower.node.request import Request
from fedatlas.flower.protocol.messages import BUFFERS, SHARED, plain, tensors
from fedatlas.parts.types import ServerState
from fedatlas.runs.checkpoint import CheckpointStore
from fedatlas.runs.files import atomic_write, private_folder
from fedatlas.runs.run import CONFIG, Run
from fedatlas.runs.schema import RESOLVED
from fedatlas.seeds import derive
from fedatlas.training.train import fingerprint

RECORD = "record"
NETWORK = "adapted.safetensors"


def adapt(request: Request, received: RecordDict) -> RecordDict:
    """Tune and test on the node; the reply holds the results, not the tuned parameters."""
    shared, buffers = (tensors(received.array_records[name]) for name in (SHARED, BUFFERS))
    options = _options(request)
    _check_model(request)
    (client,) = request.federation.clients
    tested = len(client.test) >= max(1, request.policy.least_examples)
    # Tuning needs a test part. Scores on one that is too small are scores of few examples: they are not even made.
    own = request.federation if tested else replace(request.federation, clients=(replace(client, test=client.train),))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if request.node.memory is None else request.folder()
        run = write_run(folder / "model", request, shared, buffers)
        adapter = Adapter(run, data=own, algorithm=request.algorithm(), device=str(request.device))
        found: Adapted = adapter.adapt(0, **options)
        found.save(folder / NETWORK)
    return RecordDict({RECORD: plain(_figures(found, tested=tested))})


def _options(request: Request) -> dict[str, Any]:
    """Return how to tune: what the message may choose, and the steps of the run and the policy."""
    try:
        chosen = NewcomerTuning.of("adapt", json.loads(str(request.about["adapt"]))).chosen()
    except (ValueError, OverflowError, RecursionError) as error:
        raise PolicyError(
            f"against the policy of this node: {error}", code="against-policy", kind="adapt", got=request.about["adapt"]
        ) from None
    work = request.in_large_steps(request.config.work())
    # By a seed that the server knows, replies to many messages would tell apart what each example did in a step.
    seed = derive(0, "newcomer", fingerprint(request.federation), work.batch_size)
    return {**chosen, "batch_size": work.batch_size, "least_batch": work.least_batch, "seed": seed}


def _figures(found: Adapted, *, tested: bool) -> dict[str, Any]:
    """Return what leaves the node, by name."""
    figures: dict[str, Any] = {
        "algorithm": found.adapter.algorithm.name,
        "origin": found.origin,
        "num_examples": found.num_examples,
        "num_steps": found.num_steps,
        "num_tuned": found.num_tuned,
        "num_tested": found.after.num_examples if tested else 0,
        "seconds": found.seconds,
        "loss": mean_loss(found),
    }
    if tested:
        for when, score in (("before", found.before), ("after", found.after)):
            figures |= {f"{found.metric.name}_{when}": score.main, f"loss_{when}": score.loss}
    return figures


@torch.no_grad()
def mean_loss(found: Adapted) -> float:
    """Return the mean loss of the tuned model over all of the client's training examples: the same ones each time."""
    network, data = found.model(), ResidentData(found.adapter.federation, 0)
    losses = []
    for indices in data.client.train.split(EVALUATION_BATCH[data.labels.device.type]):
        batch = data.batch(indices, None)
        _, logits = network(batch.inputs)
        losses.append(data.task.losses(logits.float(), batch.labels).double())
    return float(torch.cat(losses).mean())


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

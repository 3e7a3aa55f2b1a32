"""A client's part in a check of all clients' data: figures that it declares, and the card that it gets."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import RecordDict

from fedatlas.atlas.doctor.duplicates import keyed_hashes
from fedatlas.atlas.doctor.figures import describe_clients, example_keys
from fedatlas.errors import DataError
from fedatlas.flower.node.request import Request
from fedatlas.flower.protocol.messages import ABOUT, arrays, plain
from fedatlas.flower.server.questions import ROW
from fedatlas.runs.files import atomic_write, private_folder

CARD = "card.txt"
_LONGEST = 20_000
_SHORTEST_KEY = 16


def figures(request: Request, _: RecordDict) -> RecordDict:
    """Return figures about the client's columns, images and copies."""
    (own,) = describe_clients(request.federation)
    return RecordDict({ROW: arrays(own.tensors())})


def hashes(request: Request, _: RecordDict) -> RecordDict:
    """Return a keyed hash of nothing and of each training example; none if the node was given no key."""
    found = np.zeros(0, np.int64)
    if request.node.copies_key is not None:
        key = request.node.copies_key.read_bytes().strip()
        if len(key) < _SHORTEST_KEY:
            raise DataError(
                f"{request.node.copies_key} holds {len(key)} bytes; a safe key has at least "
                f"{_SHORTEST_KEY}. Make one with `openssl rand -hex 32`, the same for all nodes.",
                code="out-of-range",
                got=len(key),
                least=_SHORTEST_KEY,
            )
        data, train = request.federation.data, request.federation.clients[0].train.cpu().numpy()
        counted = example_keys(data)[1]
        rows = data.inputs.cpu().numpy()[train[counted[train]]]
        found = np.concatenate([keyed_hashes(np.zeros((1, 0)), key), keyed_hashes(rows, key)])
    return RecordDict({ROW: arrays({"hashes": torch.from_numpy(found)})})


def card(request: Request, _: RecordDict) -> RecordDict:
    """Write the client's card, which says what was found about its own data."""
    said = str(request.about["card"])[:_LONGEST]
    # What a terminal shows must not come from elsewhere.
    lines = ["".join(sign for sign in line if sign.isprintable()) for line in said.splitlines()]
    print("\n".join(["card", *(f"  {line}" for line in lines)]), flush=True)
    if request.node.memory is not None:
        private_folder(request.node.memory)
        atomic_write(request.node.memory / CARD, ("\n".join(lines) + "\n").encode())
    return RecordDict({ABOUT: plain({"received": True})})

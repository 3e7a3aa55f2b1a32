"""The client's app as Flower starts it for each message: it hands the message to the node's worker.

Flower starts a process for every message. This module imports neither torch nor the engine, so that such a process has
little to load. The node's worker (worker.py) has both, the data and the network, and stays. They talk over a Unix
socket in a folder that only the node's user can enter. Without a worker, or with one that cannot answer, the process
does the work itself.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedatlas.flower.node.line import ANSWERED, FAILED, SOCKET, NodeError, is_own, packed, receive, records_of, send


class Front(ClientApp):
    """Hands messages to the node's worker."""

    def __init__(self, config: Path | str) -> None:
        super().__init__()
        self.config = Path(config)

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the reply to a message, from the worker where there is one."""
        reply = ask_worker(self.config, message, context)
        if reply is not None:
            return reply
        from fedatlas.flower.node.app import answer  # it loads torch

        return answer(self.config, message, context)


def ask_worker(config: Path, message: Message, context: Context) -> Message | None:
    """Return the worker's reply, with its changes of the context; None if there is no worker that can answer."""
    path = os.environ.get(SOCKET)
    if not path or not is_own(Path(path)):
        return None
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
            send(line, [os.fsencode(config.resolve()), *packed(message, context)])
            outcome, *parts = receive(line)
    except (OSError, EOFError, ValueError):
        return None
    if outcome == FAILED:
        raise NodeError(parts[0].decode())
    if outcome != ANSWERED:
        return None
    content, context.state = (records_of(part) for part in parts)
    return Message(content, reply_to=message)


def make_client_app(config: Path | str) -> ClientApp:
    """Return the ClientApp of a run, from its config file.

    >>> app = make_client_app("run.toml")  # doctest: +SKIP
    """
    return Front(config)

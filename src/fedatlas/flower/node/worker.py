"""The worker of a node: it has torch, the data and the network loaded, and answers one message after another.

    python -m fedatlas.flower.node.worker flower-supernode ...

starts the worker, the starter of Flower's processes (starter.py), and goes on as the program that is named, which finds
the worker by an environment variable. Both end with that program.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.common.config import parse_config_args
from flwr.supercore.task_identity import TaskIdentity

from fedatlas.flower.node.apps import install_program
from fedatlas.flower.node.line import ANSWERED, FAILED, SOCKET, UNABLE, NodeError, bytes_of, receive, send, unpacked

LOOK = 1.0
"""Seconds between two looks whether the node is still there."""


def main(command: list[str]) -> None:
    """Start a worker, and go on as a program that finds it."""
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-node-"))  # only this user can enter it
    path, door = folder / "socket", folder / "door"
    own = {**install_program(folder, door, _node_config(command)), SOCKET: str(path)}
    os.environ.update(own)
    for module, at in (("worker", path), ("starter", door)):
        subprocess.Popen([sys.executable, "-c", f"from {__package__}.{module} import serve; serve({str(at)!r})"])
    os.execvp(command[0], command)


def _node_config(command: list[str]) -> dict[str, Any]:
    """Return the node's config that a SuperNode's command holds."""
    option = "--node-config"
    return dict(parse_config_args([command[command.index(option) + 1]])) if option in command else {}


def serve(path: str) -> None:
    """Answer messages at a socket until the process that started this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the node, and the node's end this process
    signal.signal(signal.SIGTERM, lambda *_: _end(Path(path).parent))
    threading.Thread(target=_end_with, args=(os.getppid(), Path(path).parent), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        from fedatlas.flower.node.app import answer  # it loads torch, while messages wait at the door

        while True:
            line, _ = door.accept()
            with line:
                try:
                    send(line, _answer(answer, receive(line)))
                except (OSError, EOFError, ValueError):
                    continue  # the other side is gone; it asks again or works by itself


def _answer(answer: Callable[[str, Message, Context], Message], parts: list[bytes]) -> list[bytes]:
    """Return the outcome of a message, the reply's content, and what the node's context keeps."""
    try:
        config, *rest = parts
        message, context = unpacked(*rest)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, context.run_id, context.node_id
        reply = answer(os.fsdecode(config), message, context)
        return [ANSWERED, bytes_of(reply.content), bytes_of(context.state)]
    except NodeError as error:
        return [FAILED, str(error).encode()]
    except Exception as error:  # whatever it is, the process that asked does the work itself
        print(f"the worker could not answer: {error!r}", file=sys.stderr, flush=True)
        return [UNABLE]


def _end_with(parent: int, folder: Path) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    _end(folder)


def _end(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])

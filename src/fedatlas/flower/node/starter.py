"""Starts Flower's processes for messages: one process that has Flower loaded, and forks for each message.

Flower's SuperNode runs a program named ``flwr-clientapp`` for every message, which takes a second of the processor to
load Flower. A node that fedatlas starts finds a small program of that name (PROGRAM): it hands its arguments, its
environment and its open files to the starter, whose fork goes on as Flower's program, and waits for its end. Without a
starter the small program becomes Flower's program itself. The starter has one thread, and loads neither torch nor data.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

LOOK = 1.0
"""Seconds between two looks whether the node is still there."""
PATIENCE = 10.0
"""Seconds that a program has to say what it wants."""
MOST = 1 << 22
"""Bytes of arguments and environment."""
STARTED = b"started"
LOADED = ("flwr.supernode.runtime.run_clientapp", "flwr.supernode.cli", "fedatlas.flower.node.front")

PROGRAM = """\
#!{python} -IS
import json, os, socket, sys

started = b""
try:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect({door!r})
        socket.send_fds(line, [b"+"], [0, 1, 2])
        line.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
        line.shutdown(socket.SHUT_WR)
        while len(answer := line.recv(64)) and len(started := started + answer) <= {length}:
            pass
except OSError:
    pass
if not started:
    os.execv({python!r}, [{python!r}, "-c", "from {apps} import main; main()", *sys.argv[1:]])
sys.exit(started[{length}] if len(started) > {length} else 1)
"""
"""Uses neither site-packages nor fedatlas, so that it is up in a hundredth of a second."""


def program_text(door: Path, apps: str) -> str:
    """Return the program that hands over to a starter at a socket, or runs ``main`` of a module itself."""
    return PROGRAM.format(python=sys.executable, door=str(door), apps=apps, length=len(STARTED))


def serve(path: str) -> None:
    """Start processes for whoever asks at a socket, until the process that started this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the node, and the node's end this process
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen(64)
        door.settimeout(LOOK)
        for name in LOADED:  # while programs wait at the door
            importlib.import_module(name)
        gc.freeze()  # a fork shares what is never touched
        while os.getppid() == parent:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            try:
                line, _ = door.accept()
            except TimeoutError:
                continue
            with line:
                _start(line, door)


def _start(line: socket.socket, door: socket.socket) -> None:
    """Fork a process for one program; the fork never returns."""
    files: list[int] = []
    try:
        line.settimeout(PATIENCE)
        arguments, folder, environment = _request(line, files)
        if os.fork() == 0:
            door.close()
            _go_on(line, arguments, folder, environment, files)
    except (OSError, ValueError, TypeError):
        return  # the program does the work itself
    finally:
        for file in files:
            os.close(file)


def _request(line: socket.socket, files: list[int]) -> tuple[list[str], str, dict[str, str]]:
    """Return a program's arguments, its folder and its environment, and add its open files to ``files``."""
    files += socket.recv_fds(line, 1, 3)[1]
    content = bytearray()
    while len(content) <= MOST and (part := line.recv(1 << 16)):
        content += part
    arguments, folder, environment = json.loads(bytes(content[:MOST]))
    if len(files) != 3:
        raise ValueError(f"{len(files)} open files in place of 3")
    return arguments, folder, environment


def _go_on(
    line: socket.socket, arguments: list[str], folder: str, environment: dict[str, str], files: list[int]
) -> NoReturn:
    """Be the program that asked: say that it has begun, go on as Flower's program, and say how it ended."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for to, file in enumerate(files):
            os.dup2(file, to)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[:] = ["flwr-clientapp", *arguments]
        line.sendall(STARTED)
        importlib.import_module("fedatlas.flower.node.apps").main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # whatever it is, it ends this process and not the starter
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
            line.sendall(bytes([status & 255]))
        os._exit(status & 255)

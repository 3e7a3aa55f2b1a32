"""Flower's processes on one machine: a SuperLink, SuperNodes, and runs of an app on them.

All files go to one folder: keys, logs, the SuperLink's database and Flower's home. Connections are encrypted and
authenticated by default.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from fedatlas.errors import FedatlasError, UsageError
from fedatlas.flower.deploy.keys import KeyFolder, make_keys

CONNECTION = "federation"
"""The SuperLink's name in Flower's config."""


class LaunchError(FedatlasError):
    """A process of the federation did not start or ended with an error."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's processes: no telemetry, no update check, all files in ``home``."""
    own = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **own, **more}


def program(name: str) -> str:
    """Return the path of one of Flower's programs."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise UsageError(
            f"{name} is not installed; install Flower with pip install 'fedatlas[flower]'.", code="package-missing"
        )
    return found


def superlink_command(keys: KeyFolder | None, *, host: str, port: int, database: Path) -> list[str]:
    """Return the command that starts a SuperLink; without keys it is neither encrypted nor authenticated."""
    # Runs use the packages installed here; by default Flower builds a new environment for every run.
    common = ["--host", host, "--port", str(port), "--database", str(database)]
    common.append("--disable-runtime-dependency-installation")
    if keys is None:
        return [program("flower-superlink"), *common, "--insecure"]
    tls = ["--ssl-ca-certfile", str(keys.authority), "--ssl-certfile", str(keys.certificate)]
    tls += ["--ssl-keyfile", str(keys.server_key)]
    return [program("flower-superlink"), *common, *tls, "--enable-supernode-auth"]


def supernode_command(
    *,
    superlink: str,
    port: int,
    settings: Mapping[str, Any],
    authority: Path | None,
    key: Path | None,
    insecure: bool = False,
    warm: bool = True,
) -> list[str]:
    """Return the command that starts a SuperNode with its node's config, and a worker beside it if it is ``warm``."""
    # The worker starts first and stays beside the SuperNode: torch, data and network are loaded once.
    command = [sys.executable, "-m", "fedatlas.flower.node.worker"] if warm else []
    command += [program("flower-supernode"), "--superlink", superlink, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--node-config", node_config(settings)]
    if insecure:
        return [*command, "--insecure"]
    if authority is not None:
        command += ["--root-certificates", str(authority)]
    return command if key is None else [*command, "--auth-supernode-private-key", str(key)]


def node_config(settings: Mapping[str, Any]) -> str:
    """Return a node's or a run's config in the form of Flower's command line, which ends a text at its first quote."""
    return " ".join(f"{name}={_without_quotes(json.dumps(v, ensure_ascii=False))}" for name, v in settings.items())


def _without_quotes(value: str) -> str:
    """Return a value of TOML with the quotes inside a text as numbers."""
    return re.sub(r"\\.", lambda found: r"\u0022" if found[0] == r"\"" else found[0], value)


def write_connection(home: Path, address: str, authority: Path | None) -> None:
    """Write the SuperLink's address to the config of the command ``flwr``."""
    home.mkdir(parents=True, exist_ok=True)
    trust = "insecure = true" if authority is None else f"root-certificates = {json.dumps(str(authority.resolve()))}"
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


def flwr(home: Path, *arguments: str, timeout: float = 120) -> str:
    """Run the command ``flwr`` and return its output."""
    command = [program("flwr"), *arguments]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise LaunchError(
            f"`flwr {' '.join(arguments)}` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}",
            code="command-failed",
            command=command,
            status=done.returncode,
        )
    return done.stdout


def start_run(home: Path, app: Path | str, values: Mapping[str, Any], *more: str) -> str:
    """Start a run of an app with some values of its config, and return Flower's id of the run."""
    own = ["--run-config", node_config(values)] if values else []
    output = flwr(home, "run", str(app), CONNECTION, "--format", "json", *own, *more)
    return str(json.loads(output[output.index("{") :])["run-id"])


def run_status(home: Path, run: str) -> str:
    """Return the status of a run, such as ``running`` or ``finished:completed``."""
    output = flwr(home, "list", CONNECTION, "--run-id", run, "--format", "json")
    return str(json.loads(output[output.index("{") :])["runs"][0]["status"])


def follow_run(home: Path, run: str) -> None:
    """Show the log of a run's server until the run ends; raise LaunchError if it failed."""
    subprocess.run([program("flwr"), "log", run, CONNECTION, "--stream"], env=environment(home), check=False)
    while not (status := run_status(home, run)).startswith("finished"):
        time.sleep(3)  # each look starts a process
    if status != "finished:completed":
        raise LaunchError(f"run {run} is {status}; its log above says why.", code="run-failed", run=run, status=status)


def speaks_tls(address: str) -> bool:
    """Return whether a server answers in TLS; its certificate is not checked."""
    host, _, port = address.rpartition(":")
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as plain, anything.wrap_socket(plain):
            return True
    except (OSError, ValueError):
        return False


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as an error would, so that it ends the processes that it started."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the processes are ended once
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LocalFederation:
    """A SuperLink and SuperNodes as processes of this machine, ended when the block ends.

    >>> with LocalFederation("deploy", nodes=["a", "b"]) as federation:  # doctest: +SKIP
    ...     federation.start_node("a", data="a.npz")
    ...     federation.run("app")
    """

    def __init__(
        self, folder: Path | str, *, nodes: Sequence[str], insecure: bool = False, simulation: bool = False
    ) -> None:
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = self.folder / "flwr"
        self.keys = None if insecure else make_keys(self.folder / "keys", nodes=nodes)
        self.simulation = simulation
        """Whether the SuperLink runs the nodes itself, on Flower's simulation runtime."""
        self.port = free_port()
        self.environment = environment(self.home, FEDATLAS_CACHE=str(self.folder / "cache"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        write_connection(self.home, self.address, self.keys.authority if self.keys else None)

    @property
    def address(self) -> str:
        """The SuperLink's address."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start_superlink()
        if self.keys is not None:
            for name in self.keys.names():
                self.register(name)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it listens; an existing database is used again."""
        database = self.folder / "superlink.db"
        command = superlink_command(self.keys, host="127.0.0.1", port=self.port, database=database)
        self._start("superlink", [*command, "--simulation"] if self.simulation else command)
        for _ in range(600):
            if self.processes["superlink"].poll() is not None:
                break
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise LaunchError(
            f"the SuperLink did not start; its log says:\n{self.log('superlink')[-2000:]}", code="start-failed"
        )

    def register(self, name: str) -> None:
        """Register a node's key under its client's name."""
        assert self.keys is not None
        self.flwr("supernode", "register", str(self.keys.public_key(name)), CONNECTION, "--name", name)

    def start_node(
        self, name: str, *, key: Path | None = None, authority: Path | None = None, secure: bool = True, **settings: Any
    ) -> None:
        """Start a client's SuperNode; ``settings`` are its node's config, with ``_`` for ``-`` in names."""
        own = {"client": name, "memory": str(self.folder / "memory" / name)}
        own |= {title.replace("_", "-"): value for title, value in settings.items()}
        secure = secure and self.keys is not None
        if secure and self.keys is not None:
            authority, key = authority or self.keys.authority, key or self.keys.node_key(name)
        command = supernode_command(
            superlink=self.address, port=free_port(), settings=own, authority=authority, key=key, insecure=not secure
        )
        self._start(name, command)

    def flwr(self, *arguments: str) -> str:
        """Run the command ``flwr`` on this federation and return its output."""
        return flwr(self.home, *arguments)

    def start_run(self, app: Path | str, settings: str = "", *, federation: str = "", **config: Any) -> str:
        """Start a run of an app and return Flower's id of it; ``federation`` is for a simulation."""
        values = {**config, **({"settings": settings} if settings else {})}
        return start_run(self.home, app, values, *(["--federation-config", federation] if federation else []))

    def status(self, run: str) -> str:
        """Return the status of a run, such as ``running`` or ``finished:completed``."""
        return run_status(self.home, run)

    def server_log(self, run: str) -> str:
        """Return the log of a run's server."""
        return self.flwr("log", run, CONNECTION, "--show")

    def wait(self, run: str, timeout: float = 600) -> None:
        """Wait until a run has ended; raise LaunchError if it failed or takes longer than ``timeout`` seconds."""
        began = time.monotonic()
        while not (status := self.status(run)).startswith("finished"):
            if time.monotonic() - began > timeout:
                raise LaunchError(
                    f"run {run} is still {status} after {timeout:g} s:\n{self.server_log(run)[-3000:]}",
                    code="run-timeout",
                    run=run,
                    status=status,
                )
            time.sleep(3)  # each look starts a process
        if status != "finished:completed":
            raise LaunchError(
                f"run {run} is {status}:\n{self.server_log(run)[-3000:]}", code="run-failed", run=run, status=status
            )

    def run(self, app: Path | str, settings: str = "", *, timeout: float = 600, **config: Any) -> None:
        """Run an app to its end."""
        self.wait(self.start_run(app, settings, **config), timeout)

    def log(self, name: str) -> str:
        """Return the log of a process."""
        return (self.folder / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def kill(self, name: str) -> None:
        """Kill a process and its children at once, as a power cut would."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for name in list(self.processes):
            with suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(timeout=5)
            # Its children may still run.
            process = self.processes.pop(name)
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()

    def _start(self, name: str, command: Sequence[str]) -> None:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True
            )

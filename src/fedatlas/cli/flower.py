"""``fedatlas flower``: from a config to a federation of machines. Encrypted and authenticated unless told otherwise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fedatlas.cli.node_owner import audit, need_flower, owner_policy, policy, split
from fedatlas.cli.options import MACHINE, AllowCodeOption, DeviceOption, SetOption
from fedatlas.cli.terminal import friendly, help_alone, print_rows, say
from fedatlas.errors import UsageError

if TYPE_CHECKING:
    from fedatlas.flower.deploy.keys import KeyFolder

app = typer.Typer(
    help="Run over a network, on Flower: keys, server, nodes, runs.",
    invoke_without_command=True,
    callback=help_alone,
)

KeysOption = Annotated[Path | None, typer.Option("--keys", help="The folder that `fedatlas flower keys` made.")]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="No encryption and no keys: for trials only.")]
StateOption = Annotated[Path, typer.Option("--state", help="A folder for this party's own files.")]
SuperLinkOption = Annotated[str, typer.Option("--superlink", help="Where the server listens, HOST:PORT.")]
AuthorityOption = Annotated[Path | None, typer.Option("--authority", help="The authority's ca.pem.")]
RunFolderOption = Annotated[Path | None, typer.Option("--run-folder", help="Where the server keeps the run.")]
PORT = 8000
LOCAL = f"127.0.0.1:{PORT}"


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to write the app.")],
    config: Annotated[Path | None, typer.Option("--config", "-c", help="A TOML file of settings.")] = None,
    set_: SetOption = None,
    run_folder: RunFolderOption = None,
) -> None:
    """Write a Flower app that trains what a config says; `flwr run` takes it as it is."""
    with friendly():
        need_flower()
        from fedatlas.config.config import Config
        from fedatlas.flower.deploy.template import write_app

        path = write_app(folder, Config.load(config, set_ or ()), run_folder=run_folder)
        say(f"app: {path}\nrun it: flwr run {path}")


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Where the keys go; what is there stays.")],
    node: Annotated[list[str] | None, typer.Option("--node", help="A client's name; may be given many times.")] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address of the server; may be given many times.")
    ] = None,
) -> None:
    """Make a development authority, the server's certificate and a key for every node."""
    with friendly():
        need_flower()
        from fedatlas.flower.deploy.keys import LOCAL as LOOPBACK
        from fedatlas.flower.deploy.keys import make_keys

        made = make_keys(folder, nodes=node or [], hosts=[*(host or []), *LOOPBACK])
        say(
            f"authority: {made.authority} (give it to all; keep ca.key offline)\n"
            f"server: {made.certificate}, {made.server_key}\n"
            f"nodes: {', '.join(made.names()) or 'none'} (give each its own .key only)"
        )


@app.command()
def server(
    keys: KeysOption = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option("--port", help="The port to listen on.")] = PORT,
    state: StateOption = Path("flower-server"),
    insecure: InsecureOption = False,
    allow_code: AllowCodeOption = None,
) -> None:
    """Start the SuperLink, which nodes connect to and runs are sent to."""
    with friendly():
        need_flower()
        from fedatlas.flower.deploy.launch import environment, superlink_command

        state.mkdir(parents=True, exist_ok=True)
        command = superlink_command(
            _keys(keys, insecure), host=host, port=port, database=state.resolve() / "superlink.db"
        )
        _become(command, environment(state.resolve() / "flwr"))


@app.command()
def register(
    keys: KeysOption = None,
    superlink: SuperLinkOption = LOCAL,
    node: Annotated[list[str] | None, typer.Option("--node", help="A client's name; else all that have a key.")] = None,
    state: StateOption = Path("flower-server"),
) -> None:
    """Let nodes in: register their public keys at the server, each under its client's name."""
    with friendly():
        need_flower()
        from fedatlas.flower.deploy.launch import CONNECTION, flwr, write_connection

        folder = _keys(keys, False)
        assert folder is not None
        home = state.resolve() / "flwr"
        write_connection(home, superlink, folder.authority)
        for name in node or folder.names():
            flwr(home, "supernode", "register", str(folder.public_key(name)), CONNECTION, "--name", name)
            say(f"registered {name}")


@app.command()
def node(
    client: Annotated[str, typer.Option("--client", help="The client's name, under which its key is registered.")],
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Its data: a folder of pictures, an .npz or a table.")
    ] = None,
    loader: Annotated[
        str | None,
        typer.Option("--loader", help="Loads its data in place of --data: module:function or FILE.py:function."),
    ] = None,
    superlink: SuperLinkOption = LOCAL,
    authority: AuthorityOption = None,
    key: Annotated[Path | None, typer.Option("--key", help="This node's own .key.")] = None,
    domain: Annotated[str | None, typer.Option("--domain", help="The client's domain, told to the server.")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Test here, but never train.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Begin again if the client's memory is gone.")] = False,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            help="What this node does for a server, as `fedatlas flower policy` writes it; default policy.toml in "
            "--state, which is written if it is missing.",
        ),
    ] = None,
    device: DeviceOption = MACHINE.device,
    copies_key: Annotated[
        Path | None,
        typer.Option("--copies-key", help="A file with a key that all nodes share: checks look for common examples."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="A port of this machine, one for each node.")] = 9094,
    state: StateOption = Path("flower-node"),
    insecure: InsecureOption = False,
    allow_code: AllowCodeOption = None,
) -> None:
    """Start a client's SuperNode, which holds its data and what it remembers."""
    with friendly():
        need_flower()
        from fedatlas.cli.train_config import check_device
        from fedatlas.data.loading.catalogue import DATASETS
        from fedatlas.flower.deploy.launch import environment, supernode_command

        check_device(device)
        _check_connection(superlink, authority, key, insecure=insecure)
        for path in (authority, key, copies_key):
            if path is not None and not path.exists():
                raise UsageError(f"there is no file {path}. Check the path.", code="file-missing", path=path)
        memory = state.resolve() / "memory" / client
        settings: dict[str, Any] = {"client": client, "memory": str(memory), "device": device}
        if data is not None and not Path(data).exists() and data.lower().replace("-", "_") not in DATASETS:
            raise UsageError(
                f"--data: there is no file or folder {data}. Give the path of this client's data.",
                code="file-missing",
                path=data,
            )
        given = {"data": data if data is None or not Path(data).exists() else str(Path(data).resolve())}
        given |= {"loader": loader, "domain": domain, "copies-key": str(copies_key.resolve()) if copies_key else None}
        settings |= {name: value for name, value in given.items() if value is not None}
        settings |= {"held-out": True} if held_out else {}
        settings |= {"forget": True} if forget else {}
        settings |= {"policy": str(owner_policy(policy, state))}  # last: it writes a file where none is yet
        command = supernode_command(
            superlink=superlink,
            port=port,
            settings=settings,
            authority=None if insecure else authority,
            key=None if insecure else key,
            insecure=insecure,
        )
        _become(command, environment(state.resolve() / "flwr"))


def _check_connection(superlink: str, authority: Path | None, key: Path | None, *, insecure: bool) -> None:
    """Raise UsageError if a node has no keys for its server, or would go without where the server has TLS."""
    from fedatlas.flower.deploy.launch import speaks_tls

    if not insecure and (authority is None or key is None):
        raise UsageError(
            "give --authority ca.pem and --key NAME.key, or --insecure for a trial without either.",
            code="missing-option",
            option="--authority",
        )
    if insecure and speaks_tls(superlink):
        raise UsageError(
            f"{superlink} speaks TLS and lets in no node without it; leave out --insecure.",
            code="settings-conflict",
        )


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="An app that `fedatlas flower init` wrote.")],
    superlink: SuperLinkOption = LOCAL,
    authority: AuthorityOption = None,
    set_: SetOption = None,
    run_folder: RunFolderOption = None,
    adapt: Annotated[bool, typer.Option("--adapt", help="Bring newcomers to the run that is there.")] = False,
    state: StateOption = Path("flower-server"),
    insecure: InsecureOption = False,
) -> None:
    """Send an app to the server and show its log; a run that was killed goes on where it was."""
    with friendly():
        values = {"task": "adapt"} if adapt else {}
        _send(folder, _Link(superlink, authority, insecure, state.resolve() / "flwr"), set_, run_folder, values)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="An app that `fedatlas flower init` wrote.")],
    superlink: SuperLinkOption = LOCAL,
    authority: AuthorityOption = None,
    set_: SetOption = None,
    run_folder: RunFolderOption = None,
    state: StateOption = Path("flower-server"),
    insecure: InsecureOption = False,
) -> None:
    """Say how the nodes' data differ and whose are probably wrong, before any training; each node gets its card.

    Clients send what `fedatlas list --disclosures` says for check. The result is check.json in the run's folder.
    """
    with friendly():
        _send(
            folder, _Link(superlink, authority, insecure, state.resolve() / "flwr"), set_, run_folder, {"task": "check"}
        )


class _Link(NamedTuple):
    """How a server is reached."""

    superlink: str
    authority: Path | None
    insecure: bool
    home: Path
    """The folder of Flower's files."""


def _send(folder: Path, link: _Link, set_: list[str] | None, run_folder: Path | None, values: dict[str, Any]) -> None:
    """Send an app to the server with values of its config, and show its log."""
    need_flower()
    from fedatlas.flower.deploy.launch import follow_run, start_run, write_connection
    from fedatlas.flower.deploy.template import app_config

    if link.authority is None and not link.insecure:
        raise UsageError(
            "give --authority ca.pem, or --insecure where the server was started so.",
            code="missing-option",
            option="--authority",
        )
    app_config(folder, set_ or ())  # what is wrong with it is better told here than on the server
    write_connection(link.home, link.superlink, link.authority)
    own: dict[str, Any] = {"settings": "; ".join(set_)} if set_ else {}
    own |= {"folder": str(run_folder)} if run_folder else {}
    follow_run(link.home, start_run(link.home, folder, {**own, **values}))


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where everything goes.")] = Path("runs/deploy-demo"),
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="How many rounds.")] = 3,
) -> None:
    """A server and six nodes on this machine: an atlas, a training, a late joiner, and what each party sent."""
    with friendly():
        need_flower()
        from fedatlas.flower.deploy.demo import run_deploy_demo, traffic_rows

        run = run_deploy_demo(folder, rounds=rounds, say=say)
        print_rows(traffic_rows(run), "bytes from the client's side; accuracies in percent, on its own test part")
        say(f"run: {run.folder}\nreport: {run.report()}")


app.command(name="policy")(policy)
app.command(name="audit")(audit)
app.command(name="split")(split)


def _keys(folder: Path | None, insecure: bool) -> KeyFolder | None:
    from fedatlas.flower.deploy.keys import KeyFolder

    if insecure:
        return None
    if folder is None or not (folder / "ca.pem").exists():
        raise UsageError(
            "give --keys FOLDER, as `fedatlas flower keys FOLDER --node NAME` makes it; a server without encryption "
            "and keys needs --insecure.",
            code="missing-option",
            option="--keys",
        )
    return KeyFolder(folder.resolve())


def _become(command: Sequence[str], environment: dict[str, str]) -> None:
    """Go on as another program, so that signals and the exit status are its own."""
    os.execve(command[0], list(command), environment)

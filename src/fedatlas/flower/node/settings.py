"""A node's settings: its client's name, its data, and the folder for its client's memory.

The keys of the node's config (``flower-supernode --node-config``):

client      the client's name, under which the node's key is registered
data        a folder of pictures, an .npz or a table, as ``fedatlas train --data`` takes them
loader      your function in place of data, ``module:function`` or ``path/to/file.py:function``
domain      the client's domain or type, for the server's reports; sent only if you set it
held-out    true for a client that is tested but never trains
memory      a folder for the client's memory; without one the memory is lost when the node's process ends, and the test
            part is drawn each time
forget      true to let the client start with an empty memory if its memory is gone
policy      a file that says what the node does for a server, and how its rows are split; without one it keeps the
            defaults of policy.py
device      the device to compute on, cpu by default
copies-key  a file with a key that all clients share: a check then looks for the same examples at two clients
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedatlas.algorithms.user_function import find_function
from fedatlas.config.config import Config
from fedatlas.config.reading import reading_elsewhere
from fedatlas.data import Dataset, Federation, load_dataset
from fedatlas.data.loading.catalogue import kind_of
from fedatlas.errors import DataError, UsageError, unknown_name
from fedatlas.flower.node.policy import Policy
from fedatlas.flower.node.split import SPLIT, Told, divided

KEYS = ("client", "data", "loader", "domain", "held-out", "memory", "forget", "policy", "device", "copies-key")
PARTITION = ("partition-id", "num-partitions")
"""The keys that Flower's simulation sets in place of all these."""

_last: list[tuple[tuple[Any, ...], Federation]] = []
"""The client that this process read last, and what it was read from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """One client's node."""

    name: str
    federation: Federation
    """A federation of this client only; the client is not held out in it."""
    memory: Path | None = None
    forget: bool = False
    device: str = "cpu"
    position: int | None = None
    """In a simulation, the client's position in the federation that the config describes."""
    held_out: bool = False
    copies_key: Path | None = None
    """A file with a key for hashes of examples; without one no hash leaves the node."""
    told: Told | None = None
    """What was told of the node's table; None without a folder to keep it in."""


def open_node(settings: Mapping[str, Any], config: Config) -> Node:
    """Return the node that a node's config describes."""
    for key in settings:
        if key not in (*KEYS, *PARTITION):
            raise unknown_name("key in the node's config", key, KEYS)
    if "data" not in settings and "loader" not in settings and PARTITION[0] in settings:
        return _simulated_node(int(settings[PARTITION[0]]), config)
    name = str(settings.get("client", "")).strip()
    if not name:
        raise UsageError(
            'the node\'s config must name its client: --node-config \'client="NAME" data="PATH"\'.',
            code="missing-option",
            option="client",
        )
    memory = Path(str(settings["memory"])).expanduser() if "memory" in settings else None
    told = None if memory is None else Told(memory, _reading_of_table(settings, config))
    if told is not None:
        told.check()
    return Node(
        name=name,
        federation=_kept_federation(settings, config, memory),
        memory=memory,
        forget=bool(settings.get("forget", False)),
        device=str(settings.get("device", Node.device)),
        held_out=bool(settings.get("held-out", False)),
        copies_key=Path(str(settings["copies-key"])).expanduser() if "copies-key" in settings else None,
        told=told,
    )


def _reading_of_table(settings: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return how a run's config reads the node's table; nothing where the data are no table of the node's."""
    path = str(settings.get("data", ""))
    return reading_elsewhere(config, path) if kind_of(path) == "table" else {}


def _kept_federation(settings: Mapping[str, Any], config: Config, memory: Path | None) -> Federation:
    """Return the node's client; a process keeps the last one while its file or folder stays as it is."""
    own = {key: settings[key] for key in ("client", "data", "loader", "domain", "memory") if key in settings}
    policy = Policy.of_node(settings)

    def state() -> tuple[Any, ...]:
        files = (str(settings["data"]) if "data" in settings else None, None if memory is None else memory / SPLIT)
        return repr((own, policy)), config.to_toml(), *(None if file is None else _state_of(file) for file in files)

    key = state()
    if _last and _last[0][0] == key:
        return _last[0][1]
    federation = _own_federation(settings, config, policy, memory)
    domain = str(settings["domain"]) if "domain" in settings else None
    name = str(settings["client"]).strip()
    member = replace(federation.clients[0], name=name, held_out=False, domain=domain)
    federation = replace(federation, clients=(member,))
    # The state of the file that keeps the parts is the one after they were drawn.
    _last[:] = [((*key[:-1], state()[-1]), federation)]
    return federation


def _state_of(data: str | Path) -> tuple[int, ...]:
    """Return what changes when a file, or a file of a folder, is written: times and sizes."""
    path = Path(data)
    files = [path, *path.rglob("*")] if path.is_dir() else [path] if path.exists() else []
    states = [file.stat() for file in files]
    return len(states), max((s.st_mtime_ns for s in states), default=0), sum(s.st_size for s in states)


def _own_federation(settings: Mapping[str, Any], config: Config, policy: Policy, memory: Path | None) -> Federation:
    """Return a federation of one client, from the node's data or its loader."""
    if "data" not in settings and "loader" not in settings:
        raise UsageError(
            "the node's config must give the client's data: set data= or loader=.", code="missing-option", option="data"
        )
    if "data" in settings and "loader" in settings:
        raise UsageError(
            "the node's config gives both data= and loader=; keep one of the two.",
            code="settings-conflict",
            options=("data", "loader"),
        )
    source = str(settings["data"]) if "data" in settings else None
    found = _load(settings) if source is None else _read(source, config, policy.split_seed)
    if isinstance(found, Federation):
        if len(found) != 1:
            raise DataError(
                f"loader {settings['loader']}: a node holds one client, got a federation of {len(found)}.",
                code="wrong-count",
                got=len(found),
                wanted=1,
            )
        return replace(found, data=config.scaled(found.data))
    return divided(config.scaled(found), source, policy, memory)


def _read(path: str, config: Config, seed: int) -> Dataset:
    """Return the node's own data, read as the run's config says; what is drawn is drawn by the node's seed."""
    return load_dataset(path, seed=seed, options=reading_elsewhere(config, path))


def _load(settings: Mapping[str, Any]) -> Dataset | Federation:
    text = str(settings["loader"])
    found = find_function(text, "loader")(dict(settings))
    if not isinstance(found, Dataset | Federation):
        raise DataError(
            f"loader {text} must return a fedatlas.Dataset, or a Federation of one client; got {type(found).__name__}. "
            "fedatlas.from_arrays makes a Dataset from arrays.",
            code="wrong-type",
            got=type(found).__name__,
        )
    return found


def _simulated_node(position: int, config: Config) -> Node:
    federation = _whole_federation(config.to_toml())
    if not 0 <= position < len(federation):
        raise UsageError(
            f"the config makes {len(federation)} clients, but this is node {position}, counted from 0. Run the "
            f"simulation with num-supernodes={len(federation)}.",
            code="client-position",
            got=position,
            wanted=len(federation),
        )
    member = federation.clients[position]
    return Node(
        name=member.name,
        federation=replace(federation, clients=(replace(member, held_out=False),)),
        position=position,
        held_out=member.held_out,
    )


@lru_cache(maxsize=1)
def _whole_federation(config: str) -> Federation:
    """Return the federation of a config; all simulated nodes of a process share it."""
    return Config.from_text(config).federation()

"""A check over the network says what the simulator's says, from what is declared alone, and each node gets its card."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

from fedatlas import check
from fedatlas.atlas import FIGURES, HASHES, Diagnosis, keyed_hashes, summary_disclosures
from fedatlas.config import Config
from fedatlas.data import Client, Federation, Iid, federate, from_arrays
from fedatlas.errors import UsageError
from fedatlas.flower.node.app import make_client_app
from fedatlas.flower.server.check import check_clients
from fedatlas.seeds import numpy_generator
from fedatlas.testing import InProcessGrid
from flower_network import PATIENCE, config_of, handed_out, network, open_policy
from hospitals import SETTINGS, hospitals, joined, write_all
from raising import raises


def grid_of(folder: Path, config: Config, nodes: dict[str, dict[str, Any]], **options: Any) -> InProcessGrid:
    (folder / "run.toml").write_text(config.to_toml())
    agreed = {name: {"policy": str(open_policy(folder)), **own} for name, own in nodes.items()}
    return InProcessGrid(make_client_app(folder / "run.toml"), agreed, task="check", **options)


def inverted(file: Path) -> None:
    """Write a hospital's table with healthy for ill."""
    head, *rows = file.read_text().splitlines()
    turned = [f"{start},{0 if int(label) else 1}" for start, _, label in (row.rpartition(",") for row in rows)]
    file.write_text("\n".join([head, *turned]) + "\n")


def findings(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what a diagnosis says beside how long it took and what to do.

    Means of columns by label, which show inverted labels in a spreadsheet, are not sent.
    """
    said = diagnosis.to_dict()
    for suspect in said["suspects"]:
        if suspect["kind"] == "labels-inverted":
            suspect.pop("cells", None)
    return {name: said[name] for name in ("clients", "shift", "groups", "suspects", "different", "remarks", "status")}


@pytest.mark.parametrize("wrong", [None, "cleveland"])
def test_hospitals_are_checked_as_in_one_table_of_all_their_rows(wrong: str | None, tmp_path: Path) -> None:
    config = Config.load(None, SETTINGS)
    nodes = dict(sorted(hospitals(tmp_path).items()))
    if wrong is not None:
        inverted(Path(nodes[wrong]["data"]))
    for name, own in nodes.items():
        own["memory"] = str(tmp_path / "memory" / name)
    write_all(tmp_path, list(nodes))
    grid = grid_of(tmp_path, config, nodes)
    found = check_clients(config, grid, tmp_path / "run")
    assert findings(found) == findings(check(joined(nodes, config)))
    kinds = {(own.client, own.kind) for own in found.suspects}
    assert {("switzerland", "missing-coded"), ("va", "missing-coded")} <= kinds
    assert (("cleveland", "labels-inverted") in kinds) == (wrong is not None)
    assert not any(kind.startswith("train") for kind in grid.kinds)
    written = json.loads((tmp_path / "run" / "check.json").read_text())
    assert written["suspects"] == found.to_dict()["suspects"]
    assert set(written["bytes_sent"]) == set(nodes)
    card = (tmp_path / "memory" / "cleveland" / "card.txt").read_text()
    assert ("your labels disagree with the others': 'healthy' and 'ill' look exchanged" in card) == (wrong is not None)
    assert not any(name in card for name in ("hungarian", "switzerland", "va:"))
    assert found.advice[0].command == "fedatlas flower check APP"


def pictures() -> Federation:
    """Return four clients of 60 pictures of three classes; two of them have ten pictures in common, one swaps names."""
    rng = numpy_generator(0, "network check")
    labels = np.arange(240) % 3
    looks = rng.normal(0, 40, (3, 8, 8, 3))
    images = np.clip(128 + looks[labels] + rng.normal(0, 25, (240, 8, 8, 3)), 0, 255).astype(np.uint8)
    images[60:70] = images[:10]
    labels[60:70] = labels[:10]
    data = from_arrays(images, labels)
    parts = torch.arange(240).split(60)
    clients = tuple(Client(name=f"c{i}", train=own[:48], test=own[48:]) for i, own in enumerate(parts))
    return replace(federate(data, Iid(num_clients=4)), clients=clients)


def test_copies_are_looked_for_only_among_nodes_with_a_key(tmp_path: Path) -> None:
    federation, config = pictures(), config_of("fedavg", count=4)
    nodes = handed_out(federation, tmp_path / "data")
    found = check_clients(config, grid_of(tmp_path, config, nodes), tmp_path / "run")
    assert findings(found)["suspects"] == [], "without a key nobody is compared"
    for name, own in nodes.items():
        (tmp_path / f"{name}.key").write_text("a key that is long enough\n")
        own["copies-key"] = str(tmp_path / f"{name}.key")
    found = check_clients(config, grid_of(tmp_path, config, nodes), tmp_path / "run")
    assert findings(found) == findings(check(federation))
    assert [(own.client, own.kind, own.reason) for own in found.suspects] == [
        ("c0", "same-examples", "10 of its examples are at c1 too"),
        ("c1", "same-examples", "10 of its examples are at c0 too"),
    ]
    assert "c1" not in found.card("c0")
    (tmp_path / "c1.key").write_text("another key, also long enough")
    assert check_clients(config, grid_of(tmp_path, config, nodes), tmp_path / "run").suspects == ()


def test_a_key_that_can_be_guessed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, nodes = config_of("fedavg", count=4), handed_out(pictures(), tmp_path / "data")
    (tmp_path / "short.key").write_text("secret")
    nodes["c0"]["copies-key"] = str(tmp_path / "short.key")
    with raises(UsageError, "reply-missing", clients=["c0"]):
        check_clients(config, grid_of(tmp_path, config, nodes), tmp_path / "run")
    assert "a safe key has at least 16" in capsys.readouterr().err


def test_hashes_depend_on_the_key_and_the_whole_example() -> None:
    rows = np.array([[1, 2], [3, 4], [1, 2]], np.uint8)
    one, other = (keyed_hashes(rows, key) for key in (b"one", b"other"))
    assert one[0] == one[2] != one[1]
    assert not {*one.tolist()} & {*other.tolist()}


def test_nothing_but_what_is_declared_leaves_a_client(tmp_path: Path) -> None:
    config = config_of("fedavg", count=4)
    sent: dict[str, dict[str, tuple[str, int]]] = {}

    def note(name: str, message: Message, records: RecordDict) -> RecordDict:
        for record in records.array_records.values():
            own = {title: (array.dtype, len(array.shape)) for title, array in record.items()}
            sent.setdefault(message.metadata.message_type, {}).update(own)
        return records

    grid = grid_of(tmp_path, config, handed_out(pictures(), tmp_path / "data"), tamper=note)
    check_clients(config, grid, tmp_path / "run")
    assert set(grid.kinds) == {f"query.{n}" for n in ("hello", "sums", "cells", "figures", "hashes", "card")}
    declared = {
        str(own.name): (str(own.dtype).removeprefix("torch."), len(own.axes))
        for own in (*summary_disclosures(), *FIGURES, HASHES)
    }
    assert declared == {name: form for kind in sent.values() for name, form in kind.items()}


def test_figures_that_contradict_each_other_are_not_used(tmp_path: Path) -> None:
    config = config_of("fedavg", count=4)

    def spoil(name: str, message: Message, records: RecordDict) -> RecordDict:
        if message.metadata.message_type == "query.figures" and name == "c2":
            record = records.array_records["row"]
            record["images"] = type(record["images"])(np.array([3, 9, 0]))
        return records

    grid = grid_of(tmp_path, config, handed_out(pictures(), tmp_path / "data"), tamper=spoil)
    with raises(UsageError, "reply-missing", clients=["c2"]):
        check_clients(config, grid, tmp_path / "run")


@pytest.mark.slow
def test_supernodes_are_checked_and_get_their_cards(tmp_path: Path) -> None:
    federation, config = pictures(), config_of("fedavg", count=4)
    with network(federation, config, tmp_path) as local:
        run = local.start_run(tmp_path / "app", task="check")
        local.wait(run, timeout=PATIENCE)
        log = local.server_log(run)
    assert json.loads((tmp_path / "run" / "check.json").read_text())["suspects"] == []
    assert "every client has its card" in log
    assert sorted(path.parent.name for path in tmp_path.rglob("card.txt")) == ["c0", "c1", "c2", "c3"]

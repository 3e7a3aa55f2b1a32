"""Attacks over real processes: a node whose own code lies, and a server that names other folders and asks for more."""

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fedatlas.config import Config
from fedatlas.flower.deploy.launch import LaunchError, LocalFederation
from fedatlas.flower.deploy.template import write_app
from fedatlas.flower.node.audit import AUDIT, AuditLog
from fedatlas.flower.node.gate import wanted_by
from fedatlas.flower.node.policy import Wanted, policy_text
from fedatlas.runs import Run
from fedatlas.testing import tiny_federation
from flower_network import LIAR, PATIENCE, clients, config_of, handed_out, is_whole, network, reasons, simulated
from tiny import same_bits

pytestmark = [pytest.mark.slow, pytest.mark.attack("a node or a server means harm, real processes")]

LYING = """
from dataclasses import replace
from pathlib import Path

import torch

from fedatlas.data import from_npz
from fedatlas.flower.node import app

plain, pack_upload = app.plain, app.pack_upload


def lie():
    return Path({lie!r}).read_text()


def lying_plain(values):
    if "num_train" in values and lie() in ("10**14", "10**9"):
        values = {{**values, "num_train": eval(lie())}}
    return plain(values)


def lying_upload(upload, **options):
    if lie() == "10**9":
        upload = replace(upload, num_examples=10**9)
    if lie() in ("1e30", "-1000"):
        spoil = (lambda t: torch.full_like(t, 1e30)) if lie() == "1e30" else (lambda t: -1000 * t)
        upload = replace(upload, change={{name: spoil(t) for name, t in upload.change.items()}})
    if lie() == "loss":
        notes = {{
            part: {{name: torch.full_like(t, 1e6) for name, t in own.items()}} for part, own in upload.notes.items()
        }}
        upload = replace(upload, notes=notes)
    return pack_upload(upload, **options)


def load(settings):
    app.plain, app.pack_upload = lying_plain, lying_upload
    return from_npz({data!r})
"""


def test_a_real_node_that_lies_neither_owns_nor_destroys_the_model(tmp_path: Path) -> None:
    """Its size at hello and later, a huge change, a turned and scaled one, a false loss under term and afl."""
    lie = tmp_path / "lie.txt"
    with network(clients(4), config_of("fedavg", count=4), tmp_path, leave_out=(LIAR,)) as local:
        (tmp_path / "lying.py").write_text(
            LYING.format(data=str(tmp_path / "data" / f"{LIAR}.npz"), lie=str(lie)), encoding="utf-8"
        )
        lie.write_text("none")
        local.start_node(LIAR, loader=f"{tmp_path}/lying.py:load", policy=str(tmp_path / "data" / "policy.toml"))

        def run_with(what: str, settings: str = "") -> Run:
            lie.write_text(what)
            name = f"run-{len(list(tmp_path.glob('run-*')))}"
            local.run(tmp_path / "app", settings, folder=str(tmp_path / name), timeout=PATIENCE)
            return Run(tmp_path / name)

        without = run_with("10**14", "flower.clients=3")
        assert LIAR not in [client["name"] for client in without.resolved["federation"]["clients"]]
        large = run_with("10**9")
        counted = {entry["client"]: entry["weight"] for entry in large.clients if "weight" in entry}
        assert counted[LIAR] == pytest.approx(10 / 13)
        for what, said in (("1e30", "the largest number taken"), ("-1000", "times as long as the median one")):
            found = run_with(what)
            assert said in reasons(found), what
            assert is_whole(found), what
        for algorithm in ("term", "afl"):
            found = run_with("loss", f"algorithm.name={algorithm}")
            assert "the largest number taken is 10000" in reasons(found), algorithm
            assert is_whole(found), algorithm


EVIL = """
import sys

if any("flwr-serverapp" in word for word in sys.orig_argv):
    from flwr.app import ConfigRecord

    from fedatlas.flower.server import transport

    honest = transport.FlowerClients._about
    elsewhere = {"run": "../../victim"}
    transport.FlowerClients._about = lambda *given, **more: ConfigRecord({**honest(*given, **more), **elsewhere})
"""


def test_a_real_server_writes_nowhere_else_and_gets_no_embeddings(tmp_path: Path) -> None:
    """A run's identity that leads out of the node's memory, and a run setting that asks for embeddings with labels."""
    settings = ["model.name=cnn", "training.batch_size=10", "flower.wait=30"]
    federation, config = clients(1, "images"), config_of("scaffold", *settings, count=1)
    (node,) = handed_out(federation, tmp_path / "data").values()
    write_app(tmp_path / "app", config, run_folder=tmp_path / "run")
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "sitecustomize.py").write_text(EVIL)
    local = LocalFederation(tmp_path / "network", nodes=[node["client"]])
    honest = dict(local.environment)
    victim = tmp_path / "network" / "victim"
    (victim / "checkpoints").mkdir(parents=True)
    (victim / "checkpoints" / "precious").write_text("kept")
    local.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "evil"), honest.get("PYTHONPATH", "")])
    with local:  # the SuperLink and the run's server have the evil code, the node does not
        local.environment.clear()
        local.environment.update(honest)
        local.start_node(node["client"], data=node["data"], policy=node["policy"])
        with suppress(LaunchError):
            local.run(tmp_path / "app", timeout=PATIENCE)
        log = _log(tmp_path)
        assert [entry["answer"] for entry in log if entry["run"] == "../../victim"][:1] == ["failed"]
        assert [path.name for path in victim.rglob("*")] == ["checkpoints", "precious"]
        Path(node["policy"]).write_text(policy_text())
        make = 'atlas.make={ source = "client2vec", strategy = "global", epochs = 1 }'
        with suppress(LaunchError):
            local.run(
                tmp_path / "app", f"algorithm.name=fedavg; {make}", folder=str(tmp_path / "more"), timeout=PATIENCE
            )
        asked = _log(tmp_path)[len(log) :]
        assert {entry["answer"] for entry in asked} == {"refused"}
        assert "map client2vec global" in json.dumps(asked)


CALLED_A_CHECK = """
import sys

if any("flwr-serverapp" in word for word in sys.orig_argv):
    from fedatlas.flower.server import app

    app.TASKS["check"] = app.serve
"""


def test_a_real_server_learns_no_row_by_other_seeds_and_nothing_by_calling_its_run_a_check(tmp_path: Path) -> None:
    """A node with a table agreed to a check. Two runs with other seeds, then SCAFFOLD under the name of a check."""
    table = Path(__file__).parents[2] / "src/fedatlas/data/embedded/heart.csv"
    lines = table.read_text().splitlines()[:61]
    (tmp_path / "own.csv").write_text("".join(f"{line.partition(',')[2]}\n" for line in lines))
    settings = ["data.label=num", "data.classes={ healthy = [0], ill = [1, 2, 3, 4] }", "model.name=linear"]
    settings += ["training.batch_size=10"]
    write_app(
        tmp_path / "app",
        config_of("fedavg", *settings, "flower.most_weight=none", count=1, rounds=1),
        run_folder=tmp_path / "run",
    )
    (tmp_path / "policy.toml").write_text(policy_text(Wanted(disclosures=["check"])))
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "sitecustomize.py").write_text(CALLED_A_CHECK)
    local = LocalFederation(tmp_path / "network", nodes=["alpha"])
    honest = dict(local.environment)
    local.environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "evil"), honest.get("PYTHONPATH", "")])
    with local:
        local.environment.clear()
        local.environment.update(honest)
        local.start_node("alpha", data=str(tmp_path / "own.csv"), policy=str(tmp_path / "policy.toml"))
        told = []
        for seed in range(2):
            folder, split = tmp_path / f"seed-{seed}", f"data.test_fraction=0.001; seeds.partition={seed}"
            local.run(tmp_path / "app", split, folder=str(folder), timeout=PATIENCE)
            found = Run(folder).resolved["federation"]
            told.append((found["form"], found["clients"][0]["num_train"], found["clients"][0]["num_test"]))
        assert told[0] == told[1]
        assert told[0][1:] == (45, 15)
        before = len(_log(tmp_path))
        with suppress(LaunchError):
            scaffold = "algorithm.name=scaffold"
            local.run(tmp_path / "app", scaffold, folder=str(tmp_path / "more"), task="check", timeout=PATIENCE)
        asked = [entry for entry in _log(tmp_path)[before:] if entry["request"] == "train"]
        assert [entry["answer"] for entry in asked] == ["refused"]
        assert "disclosure 'scaffold'" in str(asked[0]["why"])


def test_a_real_server_gets_no_step_and_no_loss_of_few_examples(tmp_path: Path) -> None:
    """Under a default policy: steps of one example, then of ten, then a newcomer without and with its owner's word."""
    federation = tiny_federation()
    federation = replace(federation, clients=tuple(federation.clients[i] for i in (0, 3, 4)))
    config = config_of("fedavg", "training.batch_size=10", "flower.adapt={ rounds = 2, steps = 2 }", count=2)
    nodes = handed_out(federation, tmp_path / "data")
    policy = tmp_path / "data" / "policy.toml"
    policy.write_text(policy_text())
    write_app(tmp_path / "app", config, run_folder=tmp_path / "run")
    *first, late = nodes
    with LocalFederation(tmp_path / "network", nodes=list(nodes)) as local:
        for name in first:
            local.start_node(name, data=nodes[name]["data"], policy=str(policy))
        with suppress(LaunchError):
            one = "training.batch_size=1; training.steps=1; optimizer.lr=1.0; flower.wait=20"
            local.run(tmp_path / "app", one, folder=str(tmp_path / "one"), timeout=PATIENCE)
        asked = _logs(tmp_path)
        assert {entry["answer"] for entry in asked} == {"refused"}
        assert "batch_size 1 is below the 10 examples of a step" in json.dumps(asked)
        local.run(tmp_path / "app", timeout=PATIENCE)
        least = Config.load(tmp_path / "app" / "fedatlas_app" / "run.toml", ["training.least_batch=10"])
        trained = replace(federation, clients=federation.clients[:2])
        here = simulated(least, trained, tmp_path / "here")
        assert same_bits(Run(tmp_path / "run").parameters(), here.parameters())
        local.start_node(late, data=nodes[late]["data"], policy=str(policy))
        with suppress(LaunchError):
            local.run(tmp_path / "app", task="adapt", timeout=PATIENCE)
        assert Run(tmp_path / "run").adapted == []
        assert "disclosure 'adapt'" in json.dumps(_logs(tmp_path))
        policy.write_text(policy_text(wanted_by(config)))
        local.run(tmp_path / "app", task="adapt", timeout=PATIENCE)
        (record,) = Run(tmp_path / "run").adapted
        assert (record["client"], record["num_steps"], record["num_tested"]) == (late, 4, 0)
        assert len(record["losses"]) == 1


def _logs(folder: Path) -> list[dict[str, object]]:
    return [entry for path in sorted((folder / "network").rglob(AUDIT)) for entry in AuditLog(path).entries()]


def _log(folder: Path) -> list[dict[str, object]]:
    (path,) = (folder / "network").rglob(AUDIT)
    return list(AuditLog(path).entries())

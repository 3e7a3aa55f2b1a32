"""A demo federation on one machine, set up as a real one: TLS, node keys, a folder of digits for every node."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedatlas.config.config import Config
from fedatlas.data import ByDomain, Federation, federate, load_dataset
from fedatlas.errors import RunFolderError
from fedatlas.flower.deploy.launch import LocalFederation, ended_by_signals
from fedatlas.flower.deploy.template import write_app
from fedatlas.flower.node.export import write_pictures
from fedatlas.flower.node.gate import wanted_by
from fedatlas.flower.node.policy import policy_text
from fedatlas.runs.run import Run

EXAMPLES, TESTS = 120, 60
LATE = "latecomer"
INDEX = '{ source = "client2vec", epochs = 2, settings = { layers = 1, feed_forward = 64, cohort = 1.0 } }'


def demo_federation() -> Federation:
    """Return five clients with digits of one domain each, and a late sixth client with the first one's domain."""
    federation = federate(load_dataset("digits"), ByDomain(clients_per_domain=2))
    first = [client for client in federation.clients if client.name.endswith("-0")]
    late = replace(federation.clients[1], name=LATE)
    clients = (replace(c, train=c.train[:EXAMPLES], test=c.test[:TESTS]) for c in (*first, late))
    return replace(federation, clients=tuple(clients))


def demo_config(names: list[str], rounds: int) -> Config:
    """Return a config of FedPCE that samples and weights clients by an atlas which the clients make together."""
    listed = ", ".join(f'"{name}"' for name in names)
    return Config.load(
        None,
        [
            "algorithm.name=fedpce",
            "model.name=cnn",
            "model.norm=instance",
            f"training.rounds={rounds}",
            "training.cohort=4",
            "training.batch_size=16",
            "training.epochs=5",
            f"atlas.make={INDEX}",
            'atlas.use=["sample", "aggregate"]',
            f"flower.clients=[{listed}]",
            "flower.minimum=3",
            "flower.adapt={ rounds = 10, steps = 10 }",
        ],
    )


def run_deploy_demo(folder: Path, *, rounds: int, say: Callable[[str], None] = print) -> Run:
    """Start a SuperLink and five SuperNodes, train, let a sixth join late and adapt, and return the run."""
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(
            f"{folder} is not empty; choose another folder for the demo.", code="folder-not-empty", path=str(folder)
        )
    federation = demo_federation()
    names = [client.name for client in federation.clients]
    for i, name in enumerate(names):
        write_pictures(federation, i, folder / "data" / name)
    config = demo_config(names[:-1], rounds)
    app = write_app(folder / "app", config, run_folder=folder / "run")
    policy = folder / "policy.toml"
    policy.write_text(policy_text(wanted_by(config)), encoding="utf-8")
    say(f"six folders of digits in {folder / 'data'}, an app in {app}")
    with ended_by_signals(), LocalFederation(folder / "network", nodes=names) as local:
        say(f"a SuperLink on {local.address} with TLS and six registered keys; logs in {folder / 'network' / 'logs'}")
        for name in names[:-1]:
            local.start_node(name, data=str(folder / "data" / name), domain=name.removesuffix("-0"), policy=str(policy))
        say("five nodes started; they make the atlas and train (a minute or two)")
        local.run(app)
        local.start_node(LATE, data=str(folder / "data" / LATE), policy=str(policy))
        say("the sixth node joins late and adapts the model to its data")
        local.run(app, task="adapt")
    return Run(folder / "run")


def traffic_rows(run: Run) -> list[dict[str, str]]:
    """Return the bytes that each client got and sent over all rounds, and its accuracy in percent."""
    before = json.loads((run.folder / "before.json").read_text())["bytes"]
    last = {entry["client"]: entry for entry in run.clients if "accuracy" in entry}
    rows = []
    for client in run.resolved["federation"]["clients"]:
        name = client["name"]
        played = [line["bytes"].get(name, {"down": 0, "up": 0}) for line in run.rounds]
        rounds = sum(name == entry["client"] and entry["trained"] for entry in run.clients)
        first = before.get(name, {"down": 0, "up": 0})
        rows.append(
            {
                "client": name,
                "examples": f"{client['num_train']}",
                "trained_rounds": f"{rounds}",
                "atlas_down": f"{first['down']:,}",
                "atlas_up": f"{first['up']:,}",
                "rounds_down": f"{sum(entry['down'] for entry in played):,}",
                "rounds_up": f"{sum(entry['up'] for entry in played):,}",
                "accuracy": f"{100 * last[name]['accuracy']:.1f}" if name in last else "",
            }
        )
    for record in run.adapted:
        scores = [record.get(f"accuracy_{when}") for when in ("before", "after")]
        rows.append(
            {
                "client": f"{record['client']} (adapted {record['num_tuned']} numbers)",
                "examples": f"{record['num_examples']}",
                "trained_rounds": "0",
                "atlas_down": "0",
                "atlas_up": "0",
                "rounds_down": f"{record['bytes_received']:,}",
                "rounds_up": f"{record['bytes_sent']:,}",
                "accuracy": " to ".join(f"{100 * own:.1f}" for own in scores if own is not None),
            }
        )
    return rows

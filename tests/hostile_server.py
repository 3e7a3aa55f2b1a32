"""A server that asks one node for whatever it likes."""

from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedatlas.config import Config
from fedatlas.flower import AuditLog, DataForm, arrays, policy_text
from fedatlas.flower.node.app import make_client_app
from fedatlas.testing import InProcessGrid
from fedatlas.training import make_model
from flower_network import clients, handed_out

RUN = "00c0ffee"
ASSIGNMENT = {"round": 1, "rounds": 1, "test_own": False, "holds_back": False, "branch": False, "restarts": False}


class Server:
    """A server that sends one node whatever it likes."""

    def __init__(self, folder: Path, *settings: str, policy: str | None = None, examples: int | None = None) -> None:
        self.folder, self.memory = folder, folder / "state" / "memory"
        federation = clients(1)
        own = [
            "algorithm.name=fedavg",
            "model.name=mlp",
            "training.batch_size=20",
            "flower.clients=1",
            "flower.wait=1",
            "flower.deadline=1",
        ]
        (folder / "run.toml").write_text(Config.load(None, [*own, *settings]).to_toml())
        (node,) = handed_out(federation, folder / "data").values()
        (folder / "policy.toml").write_text(policy_text() if policy is None else policy)
        self.node = {**node, "policy": str(folder / "policy.toml"), "memory": str(self.memory)}
        self.grid = InProcessGrid(make_client_app(folder / "run.toml"), {self.node["client"]: self.node})
        self.about: dict[str, Any] = {
            **DataForm.of(federation.data).values(),
            "run": RUN,
            "place": 0,
            "version": 0,
            "keep": [0],
            "atlas": "",
            "branch": False,
        }

    def set(self, settings: str) -> None:
        """Change the run's settings, as `flwr run --run-config` does."""
        self.grid.contexts[1].run_config["settings"] = settings

    def call_it(self, task: str) -> None:
        """Say what the run is for."""
        self.grid.contexts[1].run_config["task"] = task

    def model(self, config: Config) -> dict[str, torch.Tensor]:
        """Return the first parameters of a config's model for the node's data."""
        algorithm, federation = config.client_algorithm(), clients(1)
        name, options = config.model(federation.data)
        network = make_model(name, options, federation, algorithm, config.seeds().model)
        return {title: parameter.detach().clone() for title, parameter in network.named_parameters()}

    def ask(self, kind: str, about: dict[str, Any] | None = None, **records: Any) -> Message:
        """Return a node's answer."""
        told = {"about": ConfigRecord({**self.about, **(about or {})})} if kind != "query.hello" else {}
        (sent,) = self.grid.push_messages([Message(RecordDict({**told, **records}), 1, kind)])
        (reply,) = self.grid.pull_messages([sent])
        return reply

    def train(self, **about: Any) -> Message:
        """Ask for a round of training."""
        return self.ask("train", {**ASSIGNMENT, **about}, shared=arrays({}), buffers=arrays({}))

    def log(self) -> list[dict[str, Any]]:
        """Return the node's audit log."""
        return list(AuditLog(self.memory / "audit.jsonl").entries())


def refused(reply: Message, said: str) -> bool:
    """Return whether nothing came back but a reason."""
    return bool(reply.has_error() and said in str(reply.error.reason))

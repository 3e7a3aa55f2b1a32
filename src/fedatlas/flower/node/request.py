"""One message to a node, with the node, its data and the run that the message belongs to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context

from fedatlas.atlas.atlas import Atlas
from fedatlas.client.runner import ClientRunner
from fedatlas.client.work import LocalWork
from fedatlas.config.config import Config
from fedatlas.data.federation import Federation
from fedatlas.data.transforms import Augment
from fedatlas.errors import UsageError
from fedatlas.flower.node.memory import ContextStore, FolderStore, LostMemoryError, MemoryStore
from fedatlas.flower.node.policy import Policy
from fedatlas.flower.node.settings import Node, open_node
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.flower.protocol.messages import FLAGS
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import make_metrics
from fedatlas.parts.types import Memory
from fedatlas.runs.files import inside
from fedatlas.training.model import make_model

CHECK = "check"
"""The task of a run that looks at clients' data."""
MOST_WIDTH = 1 << 20
"""The most numbers of one half of a client's vector, of which a client makes as many zeros."""
OF_A_MESSAGE = (
    *("version", "keep", "round", "rounds", "turn", "branch", "test", "held_back", "wanted", "branches"),
    *FLAGS,
)
"""What a message says that differs from one message of a run to the next."""
_last: list[tuple[Federation, str, ClientRunner]] = []
"""The runner of this process's last message, with all that it depends on."""


class Request:
    """One message to a node; ``about`` is the message's description of the run."""

    def __init__(self, config: Config, context: Context, about: Mapping[str, Any], policy: Policy) -> None:
        self.config, self.about = config, about
        self.task = str(context.run_config.get("task", "train"))
        self.policy = policy
        self.node: Node = open_node(context.node_config, config)
        self.store: MemoryStore = ContextStore(context.state)
        if self.node.memory is not None:
            self.store = FolderStore(self.folder())
        if "kind" in about:
            data = DataForm.from_values(about).adopt(self.node.federation.data)
            self.federation = replace(self.node.federation, data=data)
        else:
            self.federation = self.node.federation
        self.device = torch.device(self.node.device)

    def folder(self) -> Path:
        """Return the folder of the run on this node; a run's identity is hexadecimal, so it leads nowhere else."""
        assert self.node.memory is not None
        return inside(self.node.memory, run_identity(self.about))

    def algorithm(self) -> Algorithm:
        """Return the run's algorithm as a client needs it: with zeros for an atlas, of which it knows only the form.

        Who shares a model is known to the server alone, which sends each client the model that it shall use.
        """
        return self.config.client_algorithm(atlas_of_form(str(self.about["atlas"]), self.node.name))

    def runner(self) -> ClientRunner:
        """Return the runner that trains and tests the client; a process keeps the last one for the next message."""
        key = self._of_run()
        if _last and _last[0][0] is self.node.federation and _last[0][1] == key:
            return _last[0][2]
        runner = self._make_runner()
        _last[:] = [(self.node.federation, key, runner)]
        return runner

    def _make_runner(self) -> ClientRunner:
        algorithm, seeds = self.algorithm(), self.config.seeds()
        name, options = self.config.model(self.federation.data)
        federation = self.federation.to(self.device)
        network = make_model(name, options, federation, algorithm, seeds.model).to(self.device)
        plan, work = self.config.plan(), self.in_large_steps(self.config.work())
        runner = ClientRunner(
            algorithm,
            network,
            federation,
            work,
            seeds.batches,
            metrics=make_metrics(plan.metrics, federation.data.task),
            intervals=plan.intervals,
        )
        runner.data(0).place = int(self.about["place"])
        return runner

    def in_large_steps(self, work: LocalWork) -> LocalWork:
        """Return the work with no step of fewer examples than the node's policy asks for, none of them hidden."""
        inputs = self.federation.data.inputs
        if isinstance(work.augment, Augment) and inputs.ndim == 4:
            self.policy.check_hiding(work.augment.share_left(*inputs.shape[2:]))
        return replace(work, least_batch=max(work.least_batch, self.policy.least_examples))

    def _of_run(self) -> str:
        """Return all that the runner depends on: the config, data, policy, and the run's entries in the message."""
        about = {name: value for name, value in self.about.items() if name not in OF_A_MESSAGE}
        node = [self.node.name, self.node.device, len(self.federation.clients[0].test), self.policy.least_examples]
        return json.dumps([self.config.to_toml(), *node, about], sort_keys=True, default=str)

    def memory(self) -> Memory:
        """Return the client's memory of the round and turn that the server names as valid."""
        try:
            return self.store.take(str(self.about["version"]))
        except LostMemoryError:
            if self.node.forget:
                return {}
            raise


def run_identity(about: Mapping[str, Any]) -> str:
    """Return the identity of the run that a message belongs to; before it has one, that is ``0``."""
    run = about.get("run", "0")
    if not isinstance(run, str) or not re.fullmatch("[0-9a-f]{1,64}", run):
        raise UsageError(
            f"a run's identity must be hexadecimal, got {run!r}. Whoever sent it may mean harm.",
            code="run-identity",
            got=run,
        )
    return run


def load_config(path: Path | str, context: Context) -> Config:
    """Return a run's config with the changes of ``settings`` (``section.key=value``, separated by ``;``)."""
    settings = str(context.run_config.get("settings", ""))
    return Config.load(path, [part.strip() for part in settings.split(";") if part.strip()])


def atlas_form(atlas: Atlas | None) -> str:
    """Return the form of an atlas, which a client needs to build the algorithm: halves, widths and the strategy."""
    if atlas is None:
        return ""
    widths = {half: table.shape[1] for half, table in atlas.halves.items()}
    return json.dumps({"widths": widths, "strategy": atlas.provenance.get("strategy")})


def atlas_of_form(form: str, name: str) -> Atlas | None:
    """Return an atlas of one client that has the form of the server's, with zeros for vectors."""
    if not form:
        return None
    described = json.loads(form)
    widths = {str(half): int(width) for half, width in described["widths"].items()}
    if not all(0 < width <= MOST_WIDTH for width in widths.values()):
        raise UsageError(
            f"the run's atlas is said to have the widths {widths}, at most {MOST_WIDTH} are possible.",
            code="out-of-range",
            got=widths,
        )
    halves = {half: torch.zeros(1, width) for half, width in widths.items()}
    provenance = {"strategy": described["strategy"]}
    return Atlas(names=(name,), halves=halves, sizes=torch.ones(1, dtype=torch.int64), provenance=provenance)

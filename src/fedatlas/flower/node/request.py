"""One message to a node, with the node, its data and the run that the message belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context

from fedatlas.atlas.atlas import Atlas
from fedatlas.client.runner import ClientRunner
from fedatlas.config.config import Config
from fedatlas.flower.node.memory import ContextStore, FolderStore, LostMemoryError, MemoryStore
from fedatlas.flower.node.settings import Node, open_node
from fedatlas.flower.protocol.data_form import DataForm
from fedatlas.parts.algorithm import Algorithm
from fedatlas.parts.metric import make_metrics
from fedatlas.parts.types import Memory
from fedatlas.training.model import make_model


class Request:
    """One message to a node; ``about`` is the message's description of the run."""

    def __init__(self, config: Config, context: Context, about: Mapping[str, Any]) -> None:
        self.config, self.about = config, about
        self.node: Node = open_node(context.node_config, config)
        self.store: MemoryStore = ContextStore(context.state)
        if self.node.memory is not None:
            self.store = FolderStore(self.node.memory / str(about.get("run", "run")))
        if "kind" in about:
            data = DataForm.from_values(about).adopt(self.node.federation.data)
            self.federation = replace(self.node.federation, data=data)
        else:
            self.federation = self.node.federation
        self.device = torch.device(self.node.device)

    def algorithm(self) -> Algorithm:
        """Return the run's algorithm as a client needs it: with zeros for an atlas, of which it knows only the form.

        Who shares a model is known to the server alone, which sends each client the model that it shall use.
        """
        return self.config.client_algorithm(atlas_of_form(str(self.about["atlas"]), self.node.name))

    def runner(self) -> ClientRunner:
        """Return the runner that trains and tests the client."""
        algorithm, seeds = self.algorithm(), self.config.seeds()
        name, options = self.config.model(self.federation.data)
        federation = self.federation.to(self.device)
        network = make_model(name, options, federation, algorithm, seeds.model).to(self.device)
        metrics = make_metrics(self.config.plan().metrics)
        runner = ClientRunner(algorithm, network, federation, self.config.work(), seeds.batches, metrics=metrics)
        runner.data(0).place = int(self.about["place"])
        return runner

    def memory(self) -> Memory:
        """Return the client's memory of the round that the server names as valid."""
        try:
            return self.store.take(int(self.about["version"]))
        except LostMemoryError:
            if self.node.forget:
                return {}
            raise


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
    halves = {half: torch.zeros(1, int(width)) for half, width in described["widths"].items()}
    provenance = {"strategy": described["strategy"]}
    return Atlas(names=(name,), halves=halves, sizes=torch.ones(1, dtype=torch.int64), provenance=provenance)

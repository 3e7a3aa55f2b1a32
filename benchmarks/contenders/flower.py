"""Flower's simulation (Ray, one actor a core), as its documentation shows it, or with the data resident.

As documented: every call makes the network anew, loads its client's part from disk and iterates a DataLoader.
Resident: every actor holds all data and one network, and takes slices. Both are bound to one thread an actor.
"""

import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset
from workloads import Workload, contender, resident_data, resident_network, tell, workload_of

WORKLOAD, OPTIONS = contender("Flower; variants: documented, resident")


def client_app(name: str, folder: str, resident: bool) -> ClientApp:
    """Return what runs in the actors, which find all that is kept there in the module ``workloads``."""
    app = ClientApp()

    def batches(workload: Workload, client: int) -> Any:
        if not resident:
            images, labels = torch.load(Path(folder) / f"{client}.pt")
            return DataLoader(TensorDataset(images, labels), batch_size=workload.batch_size, shuffle=True)
        images, labels = resident_data(name)
        order = client * workload.examples + torch.randperm(workload.examples)
        return [(images[own], labels[own]) for own in order.split(workload.batch_size)]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        workload = workload_of(name)
        network = resident_network(name) if resident else workload.network()
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        network.train()
        optimizer = torch.optim.SGD(network.parameters(), lr=workload.lr)
        total = 0.0
        for x, y in batches(workload, int(context.node_config["partition-id"])):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        metrics = MetricRecord({"train_loss": total, "num-examples": workload.examples})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def main() -> None:
    """Train and tell."""
    workload, rounds = WORKLOAD, OPTIONS.rounds
    times: list[float] = []
    answered: list[int] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        def note(server_round: int, arrays: ArrayRecord) -> None:
            times.append(time.perf_counter())  # called before the first round and after each

        strategy = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(workload.network().state_dict()),
            train_config=ConfigRecord({"lr": workload.lr}),
            num_rounds=rounds,
            evaluate_fn=note,
        )
        answered.extend(result.train_metrics_clientapp)

    with tempfile.TemporaryDirectory() as folder:
        resident = OPTIONS.variant == "resident"
        if not resident:
            images, labels = workload.prepared()
            parts = zip(images.split(workload.examples), labels.split(workload.examples), strict=True)
            for client, (x, y) in enumerate(parts):
                torch.save((x.clone(), y.clone()), Path(folder) / f"{client}.pt")
        run_simulation(
            server_app=server,
            client_app=client_app(OPTIONS.workload, folder, resident),
            num_supernodes=workload.clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"log_to_driver": False},
            },
        )
    if len(answered) < rounds:
        # Flower goes on without a word when every client fails, and a round is then very short.
        raise SystemExit(f"clients answered in {len(answered)} of {rounds} rounds only")
    tell([after - before for before, after in pairwise(times)], ["flwr", "ray"])


if __name__ == "__main__":
    main()

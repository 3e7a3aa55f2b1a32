"""Real processes on loopback: algorithms with special needs, refused nodes, and processes that are killed."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedatlas.atlas import make_atlas
from fedatlas.config import Config
from fedatlas.flower.deploy.keys import make_keys
from fedatlas.flower.deploy.launch import CONNECTION, LocalFederation
from fedatlas.flower.deploy.template import write_app
from fedatlas.runs import Run
from flower_network import PATIENCE, clients, config_of, finished_rounds, network, simulated, wait_until
from tiny import same_bits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("strategy", ["federated", "global"])
def test_client2vec_with_its_atlas_over_a_network_ends_with_the_simulators_bits(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDATLAS_CACHE", str(tmp_path / "cache"))
    small = "{ layers = 1, feed_forward = 8, local_epochs = 1, cohort = 1.0, upload = 5 }"
    make = f'{{ source = "client2vec", strategy = "{strategy}", epochs = 2, settings = {small} }}'
    federation = clients(3, "images")
    uses = 'atlas.use=["sample", "aggregate", "train"]'
    # Its weights are very uneven: of two clients one may count more than the network's limit for one lets it.
    own = ["model.name=cnn", "training.cohort=2", "flower.most_weight=none", f"atlas.make={make}", uses]
    config = config_of("fedavgm", *own, count=3)
    with network(federation, config, tmp_path) as local:
        local.run(tmp_path / "app", timeout=PATIENCE)
    options = config.atlas_settings()
    assert options is not None
    atlas = make_atlas(federation, **options, workers=1, progress=False)
    here = simulated(config, federation, tmp_path / "here", atlas)
    assert same_bits(Run(tmp_path / "run").parameters(), here.parameters())


def test_fedgcr_over_a_network_ends_with_the_simulators_bits(tmp_path: Path) -> None:
    model = ["model.name=prompted_vit", "model.weights=untrained", "model.width=8", "model.depth=1", "model.heads=2"]
    federation, config = clients(3, "images"), config_of("fedgcr", *model, count=3, rounds=3)
    with network(federation, config, tmp_path) as local:
        local.run(tmp_path / "app", timeout=PATIENCE)
    here = simulated(config, federation, tmp_path / "here")
    assert same_bits(Run(tmp_path / "run").parameters(), here.parameters())


def test_nodes_without_a_registered_key_the_right_authority_or_tls_are_refused(tmp_path: Path) -> None:
    other = make_keys(tmp_path / "other", nodes=["stranger"])
    with LocalFederation(tmp_path / "network", nodes=["alpha"]) as local:
        assert local.keys is not None
        local.start_node("stranger", key=other.node_key("stranger"), data="x.npz")
        local.start_node("misled", key=local.keys.node_key("alpha"), authority=other.authority, data="x.npz")
        wait_until(lambda: "No SuperNode found with the given public key" in local.log("superlink"), "a refusal")
        wait_until(lambda: "Failed to activate SuperNode" in local.log("stranger"), "the node's error")
        wait_until(lambda: "CERTIFICATE_VERIFY_FAILED" in local.log("misled"), "a certificate to be refused")
        wait_until(lambda: local.processes["stranger"].poll() == 1 == local.processes["misled"].poll(), "both to end")
        command = [sys.executable, "-m", "fedatlas", "flower", "node", "--client", "plain", "--data", "x.npz"]
        plain = subprocess.run(
            [*command, "--superlink", local.address, "--insecure"], capture_output=True, text=True, timeout=PATIENCE
        )
    assert plain.returncode == 2
    assert "speaks TLS and lets in no node without it" in " ".join(plain.stderr.split())


def test_a_node_that_is_killed_is_left_out_and_returns_with_its_memory(tmp_path: Path) -> None:
    federation = clients(3)
    # More rounds than are needed: how many pass while the node starts depends on the machine.
    config = config_of("scaffold", "flower.deadline=100", "training.evaluate_every=1", count=3, rounds=100)
    with network(federation, config, tmp_path) as local:
        run = local.start_run(tmp_path / "app")
        wait_until(lambda: finished_rounds(tmp_path / "run") >= 1, "the first round")
        local.kill("client-1")
        wait_until(lambda: finished_rounds(tmp_path / "run") >= 2, "a round without client-1")
        policy = str(tmp_path / "data" / "policy.toml")
        local.start_node("client-1", data=str(tmp_path / "data" / "client-1.npz"), policy=policy)
        wait_until(lambda: _comes_back(Run(tmp_path / "run").rounds), "client-1 to answer again")
        local.flwr("stop", run, CONNECTION)
    rounds = Run(tmp_path / "run").rounds
    stories = [story for line in rounds for story in line["left_out"]]
    assert {story["client"] for story in stories} == {"client-1"}
    assert not any("memory" in story["reason"] for story in stories)


def _comes_back(rounds: list[dict[str, Any]]) -> bool:
    """Return whether the second client answers a round after one that it missed."""
    missed = next((i for i, line in enumerate(rounds) if 1 not in line["answered"]), len(rounds))
    return any(1 in line["answered"] for line in rounds[missed:])


def test_a_server_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    federation, config = clients(2), config_of("scaffold", "training.evaluate_every=2", count=2, rounds=4)
    with network(federation, config, tmp_path) as local:
        local.start_run(tmp_path / "app")
        wait_until(lambda: finished_rounds(tmp_path / "run") >= 2, "two rounds")
        local.kill("superlink")
        local.start_superlink()
        local.run(tmp_path / "app", timeout=2 * PATIENCE)
    run, here = Run(tmp_path / "run"), simulated(config, federation, tmp_path / "here")
    assert same_bits(run.parameters(), here.parameters())
    assert [line["round"] for line in run.rounds] == [1, 2, 3, 4]


def test_a_client_app_that_dies_is_left_out(tmp_path: Path) -> None:
    """In round 2 the warm worker ends without a word, and so does the process that then does the work itself."""
    (tmp_path / "hard.py").write_text(
        "import os\nfrom pathlib import Path\n\nimport fedatlas\nfrom fedatlas.flower.node import app\n\n"
        "pack = app.pack_upload\n\n\n"
        "def load(settings):\n"
        "    count = Path(settings['memory']).parent / 'count'\n\n"
        "    def counted(*given, **named):\n"
        "        calls = int(count.read_text()) + 1 if count.exists() else 1\n"
        "        count.write_text(str(calls))\n"
        "        if calls in (2, 3):\n"
        "            os._exit(9)\n"
        "        return pack(*given, **named)\n\n"
        "    app.pack_upload = counted\n"
        f"    return fedatlas.from_npz({str(tmp_path / 'data' / 'client-1.npz')!r})\n"
    )
    federation = clients(2)
    config = config_of("fedavg", "flower.deadline=60", "training.evaluate_every=4", count=2, rounds=4)
    with network(federation, config, tmp_path, leave_out=("client-1",)) as local:
        policy = str(tmp_path / "data" / "policy.toml")
        local.start_node("client-1", loader=f"{tmp_path / 'hard.py'}:load", policy=policy)
        local.run(tmp_path / "app", timeout=2 * PATIENCE)
    rounds = Run(tmp_path / "run").rounds
    assert [bool(line["left_out"]) for line in rounds] == [False, True, False, False]


def test_the_same_app_runs_on_flowers_simulation_runtime(tmp_path: Path) -> None:
    """Needs ``pip install 'flwr[simulation]'``."""
    pytest.importorskip("ray")
    partition = "data.partition={ name = 'dirichlet', num_clients = 3, alpha = 0.5, min_samples = 10 }"
    config = Config.load(
        None,
        [
            "algorithm.name=scaffold",
            "model.name=mlp",
            "training.rounds=2",
            "training.evaluate_every=2",
            "training.steps=3",
            partition,
        ],
    )
    write_app(tmp_path / "app", config, run_folder=tmp_path / "run")
    with LocalFederation(tmp_path / "network", nodes=[], insecure=True, simulation=True) as local:
        local.run(tmp_path / "app", timeout=PATIENCE, federation="num-supernodes=3 client-resources-num-cpus=1")
    here = simulated(config, config.federation(), tmp_path / "here")
    assert same_bits(Run(tmp_path / "run").parameters(), here.parameters())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_told_to_end_ends_all_its_processes(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedatlas", "flower", "demo", str(tmp_path / "demo")]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until(lambda: "SuperNode ID" in _node_logs(tmp_path / "demo"), "a node to connect")
    assert _processes_of(tmp_path)
    demo.send_signal(how)
    assert demo.wait(60) == 128 + how
    wait_until(lambda: not _processes_of(tmp_path), "all processes to end")


def _node_logs(demo: Path) -> str:
    logs = (demo / "network" / "logs").glob("*-0.log")
    return "".join(path.read_text(errors="replace") for path in logs)


def _processes_of(folder: Path) -> list[str]:
    """Return the commands of processes that name a folder or have it in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            about = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in about:
            found.append(about.decode(errors="replace"))
    return found

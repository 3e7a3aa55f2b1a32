"""Keys, apps, nodes, forms and commands, each on its own."""

import io
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import parse_config_args
from typer.main import get_command
from typer.testing import CliRunner

from fedatlas.cli import disclosures_by_algorithm
from fedatlas.cli.flower import app
from fedatlas.config import Config
from fedatlas.data import from_arrays
from fedatlas.errors import DataError, UsageError
from fedatlas.flower.deploy.keys import make_keys
from fedatlas.flower.deploy.launch import node_config, superlink_command, supernode_command
from fedatlas.flower.deploy.template import write_app
from fedatlas.flower.node.settings import open_node
from fedatlas.flower.protocol.data_form import DataForm, Member, natural_order
from fedatlas.flower.server.exchange import NetworkSettings
from raising import raises

OPTIONS = {
    "init": {"folder", "config", "set_", "run_folder"},
    "keys": {"folder", "node", "host"},
    "server": {"keys", "host", "port", "state", "insecure", "allow_code"},
    "register": {"keys", "superlink", "node", "state"},
    "node": {
        "client",
        "data",
        "loader",
        "superlink",
        "authority",
        "key",
        "domain",
        "held_out",
        "forget",
        "device",
        "copies_key",
        "port",
        "state",
        "insecure",
        "policy",
        "allow_code",
    },
    "policy": {"file", "wanted", "set_", "overwrite"},
    "audit": {"file", "last", "contains"},
    "split": {"state", "let_in"},
    "run": {"folder", "superlink", "authority", "set_", "run_folder", "adapt", "state", "insecure"},
    "check": {"folder", "superlink", "authority", "set_", "run_folder", "state", "insecure"},
    "demo": {"folder", "rounds"},
}


def test_the_flower_commands_keep_their_options() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {name: {p.name for p in c.params if p.name != "help"} for name, c in commands.items()} == OPTIONS


def test_the_authority_signs_the_servers_certificate_and_keys_are_private(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", nodes=["alpha"], hosts=["example.org", "10.0.0.1"])
    authority, server = (x509.load_pem_x509_certificate(p.read_bytes()) for p in (keys.authority, keys.certificate))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["example.org"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    private = load_ssh_private_key(keys.node_key("alpha").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == load_ssh_public_key(keys.public_key("alpha").read_bytes())
    for path in (keys.node_key("alpha"), keys.server_key, tmp_path / "keys" / "ca.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_that_are_there_stay(tmp_path: Path) -> None:
    before = make_keys(tmp_path, nodes=["alpha"]).node_key("alpha").read_bytes()
    keys = make_keys(tmp_path, nodes=["alpha", "beta"])
    assert keys.node_key("alpha").read_bytes() == before
    assert keys.names() == ["alpha", "beta"]
    with raises(UsageError, "client-name", got="../x"):
        make_keys(tmp_path, nodes=["../x"])


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # raised by Flower itself
def test_flower_takes_an_app_that_holds_the_runs_config(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "my-app", Config.load(None, ["algorithm.name=fedprox", "training.rounds=7"]))
    config, _ = load_and_validate(folder / "pyproject.toml")
    assert config["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedatlas_app.server_app:app"
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as bundle:
        text = bundle.read("fedatlas_app/run.toml").decode()
    again = Config.from_text(text)
    assert (again.values["algorithm"]["name"], again.plan().rounds) == ("fedprox", 7)


def test_a_server_and_a_node_are_encrypted_and_authenticated_by_default(tmp_path: Path) -> None:
    keys = make_keys(tmp_path, nodes=["alpha"])
    server = superlink_command(keys, host="127.0.0.1", port=8000, database=tmp_path / "db")
    assert "--enable-supernode-auth" in server
    assert "--insecure" not in server
    node = supernode_command(
        superlink="h:1", port=2, settings={"client": "alpha"}, authority=keys.authority, key=keys.node_key("alpha")
    )
    assert "--auth-supernode-private-key" in node
    assert "--insecure" not in node


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["server"], "give --keys FOLDER"),
        (["node", "--client", "a", "--data", "x.npz"], "give --authority ca.pem and --key NAME.key"),
        (["run", "app"], "give --authority ca.pem"),
    ],
)
def test_insecure_must_be_given(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_faults_are_reported_before_anything_is_sent(tmp_path: Path) -> None:
    write_app(tmp_path / "app", Config.load())
    for arguments, said in (
        (
            ["node", "--client", "a", "--data", "nowhere/scans", "--insecure"],
            "there is no file or folder nowhere/scans",
        ),
        (["run", str(tmp_path / "ap"), "--insecure"], "is not an app"),
        (["run", str(tmp_path / "app"), "--insecure", "--set", "training.batchsize=8"], "training.batchsize"),
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.output.split())


def test_a_node_reads_its_data_from_a_file_or_a_function(tmp_path: Path) -> None:
    config = Config.load()
    x, y = np.random.default_rng(0).random((20, 4), dtype=np.float32), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x_train=x[:15], y_train=y[:15], x_test=x[15:], y_test=y[15:])
    node = open_node({"client": "a", "data": str(tmp_path / "own.npz"), "domain": "north"}, config)
    assert (len(node.federation.clients[0].train), len(node.federation.clients[0].test)) == (15, 5)
    assert node.federation.clients[0].domain == "north"
    (tmp_path / "mine.py").write_text(
        "import fedatlas\n\n\ndef load(settings):\n    return fedatlas.from_arrays([[0.0, 1.0]] * 8, [0, 1] * 4)\n"
    )
    node = open_node({"client": "a", "loader": f"{tmp_path / 'mine.py'}:load"}, config)
    assert len(node.federation.clients[0].train) == 6


def test_all_nodes_scale_images_as_the_servers_config_says(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((8, 1, 4, 4), dtype=np.uint8), y=np.arange(8) % 2)
    config = Config.load(None, ["data.mean=[0.5]", "data.std=[0.25]"])
    node = open_node({"client": "a", "data": str(tmp_path / "own.npz")}, config)
    assert (node.federation.data.mean, node.federation.data.std) == ((0.5,), (0.25,))


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"data": "x"}, "missing-option", {"option": "client"}),
        ({"client": "a"}, "missing-option", {"option": "data"}),
        ({"client": "a", "data": "x", "loader": "x:y"}, "settings-conflict", {"options": ("data", "loader")}),
        ({"client": "a", "dta": "x"}, "unknown-name", {"got": "dta"}),
    ],
)
def test_a_nodes_config_is_checked(settings: dict[str, str], code: str, fields: dict[str, object]) -> None:
    with raises(UsageError, code, **fields):
        open_node(settings, Config.load())


def test_a_nodes_loader_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def load(settings):\n    return 7\n")
    with raises(DataError, "wrong-type", got="int"):
        open_node({"client": "a", "loader": f"{file}:load"}, Config.load())
    with raises(UsageError, "user-function", got="nowhere.at.all:load"):
        open_node({"client": "a", "loader": "nowhere.at.all:load"}, Config.load())


def test_clients_may_hold_different_classes_but_not_different_forms() -> None:
    two = from_arrays([[0.0, 1.0]] * 4, ["cat", "dog"] * 2)
    three = from_arrays([[0.0, 1.0]] * 4, ["bird", "dog", "dog", "cow"])
    form = DataForm.of(two).unite(DataForm.of(three))
    assert form.classes == ("bird", "cat", "cow", "dog")
    assert form.adopt(three).labels.tolist() == [0, 3, 3, 2]
    assert DataForm.from_values(form.values()) == form
    with raises(DataError, "kind-mismatch", got="features of shape [3]", wanted="features of shape [2]"):
        form.unite(DataForm.of(from_arrays([[0.0] * 3] * 2, [0, 1])))
    stand_in = form.stand_in([Member(name="a", num_train=5, num_test=1)])
    assert torch.equal(stand_in.data.labels, torch.tensor([0]))


def test_numbers_in_names_are_sorted_as_numbers() -> None:
    assert sorted(["site-10", "site-2", "a"], key=natural_order) == ["a", "site-2", "site-10"]


def test_a_minimum_is_a_number_or_a_share_of_the_cohort() -> None:
    assert [NetworkSettings(minimum=m).least(8) for m in (1, 3, 20, 0.5)] == [1, 3, 8, 4]
    for wrong in (0, 1.5):
        with raises(UsageError, "out-of-range", name="flower.minimum", got=wrong):
            NetworkSettings(minimum=wrong)


def test_a_nodes_config_is_written_as_flower_reads_it() -> None:
    assert node_config({"client": "a b", "held-out": True, "n": 3}) == 'client="a b" held-out=true n=3'
    odd = {"settings": """a={ b = "x", c = 'q' }; d="\\"e\"""", "data": "a b/\u00e9\U0001f600\\n", "n": "\n"}
    assert parse_config_args([node_config(odd)]) == odd  # as Flower reads it


def test_the_guide_says_what_every_algorithm_discloses() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    for name, line in disclosures_by_algorithm().items():
        assert f"`{name}`" in guide
        assert line in guide or line.startswith("nothing beyond")

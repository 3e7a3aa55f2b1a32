"""An app is code that a server sends: a node runs only the code that it knows, or that its owner allowed by hash."""

import hashlib
import io
import json
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk

from fedatlas.config import Config
from fedatlas.errors import UsageError
from fedatlas.flower.deploy.launch import LaunchError
from fedatlas.flower.deploy.template import app_code, write_app
from fedatlas.flower.node.apps import PLACE, app_fault, check_app, install_program
from fedatlas.flower.node.audit import AUDIT, AuditLog
from fedatlas.flower.node.policy import policy_text
from flower_network import PATIENCE, clients, config_of, network
from raising import raises

pytestmark = pytest.mark.attack("a server means harm")


def packed(folder: Path) -> bytes:
    """Return an app as Flower sends it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's own making
        return build_fab_from_disk(folder)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app(tmp_path / "app", Config.load(None, ["algorithm.name=fedavg"]))


def test_the_app_that_fedatlas_writes_is_known(app: Path) -> None:
    assert app_fault(packed(app), ["fedatlas"]) is None
    assert {name for name in app_code() if (app / name).exists()} == set(app_code())


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a line more": (lambda app: _append(app / "fedatlas_app/client_app.py", "import os\n"), "client_app.py"),
    "code in the package": (lambda app: _append(app / "fedatlas_app/__init__.py", "1\n"), "__init__.py"),
    "another file": (lambda app: _append_new(app / "fedatlas_app/torch.py"), "torch.py"),
    "another file on top": (lambda app: _append_new(app / "numpy.py"), "numpy.py"),
    "another beginning": (
        lambda app: (app / "pyproject.toml").write_text(
            (app / "pyproject.toml").read_text().replace("fedatlas_app.client_app:app", "fedatlas_app.server_app:app")
        ),
        "begins at",
    ),
}


def _append_new(path: Path) -> None:
    path.write_text("print('hello')\n")


@pytest.mark.parametrize("change", CHANGES)
def test_an_app_with_code_of_its_sender_is_refused_and_logged(change: str, app: Path, tmp_path: Path) -> None:
    alter, said = CHANGES[change]
    alter(app)
    content = packed(app)
    assert said in str(app_fault(content, ["fedatlas"]))
    assert app_fault(content, [hashlib.sha256(content).hexdigest()]) is None
    (tmp_path / "policy.toml").write_text(policy_text())
    place = {"policy": str(tmp_path / "policy.toml"), "memory": str(tmp_path / "memory"), "marks": str(tmp_path)}
    with raises(UsageError, "against-policy", kind="app"):
        check_app(content, place)
    (entry,) = AuditLog(tmp_path / "memory" / AUDIT).entries()
    assert (entry["answer"], entry["app"]) == ("refused", hashlib.sha256(content).hexdigest())


def test_a_policy_that_allows_no_app_holds_at_once(app: Path, tmp_path: Path) -> None:
    content, policy = packed(app), tmp_path / "policy.toml"
    place = {"policy": str(policy), "memory": None, "marks": str(tmp_path)}
    policy.write_text(policy_text())
    check_app(content, place)
    check_app(content, place)
    policy.write_text(policy_text().replace('apps = ["fedatlas"]', "apps = []"))
    with raises(UsageError, "against-policy"):
        check_app(content, place)


def test_a_bomb_or_no_archive_is_not_an_app(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", bytes(1 << 27))
    assert "too large" in str(app_fault(buffer.getvalue(), ["fedatlas"]))
    assert "cannot be read" in str(app_fault(b"hello", ["fedatlas"]))


def test_the_program_is_found_before_flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    own = install_program(tmp_path, tmp_path / "door", {"policy": "p.toml"})
    assert own["PATH"] == f"{tmp_path}/bin:/usr/bin"
    assert json.loads(own[PLACE]) == {"policy": "p.toml", "memory": None, "marks": str(tmp_path)}
    assert (tmp_path / "bin" / "flwr-clientapp").read_text().startswith(f"#!{sys.executable} -IS\n")


@pytest.mark.slow
def test_a_real_node_runs_no_code_of_a_server_and_gives_no_more_than_agreed(tmp_path: Path) -> None:
    """Over real processes: an app with a line more, and a run setting that asks for more; then a fair run."""
    done, config = tmp_path / "done", config_of("fedavg", "flower.wait=20", "training.batch_size=10", count=1, rounds=1)
    with network(clients(1), config, tmp_path) as local:
        (tmp_path / "data" / "policy.toml").write_text(policy_text())
        file = tmp_path / "app" / "fedatlas_app" / "client_app.py"
        whole = file.read_text()
        file.write_text(f"open({str(done)!r}, 'w').close()\n" + whole)
        asked = {"altered": ("", "app"), "more": ("algorithm.name=scaffold", "query.hello")}
        for what, (setting, request) in asked.items():
            number = local.start_run(tmp_path / "app", setting, folder=str(tmp_path / what))
            with suppress(LaunchError):
                local.wait(number, PATIENCE)
            file.write_text(whole)
            entry = _log(tmp_path)[-1]
            assert (entry["request"], entry["answer"]) == (request, "refused"), what
        assert not done.exists()
        assert "train" not in {entry["request"] for entry in _log(tmp_path) if entry["answer"] == "sent"}
        local.run(tmp_path / "app")
        sent = [entry["request"] for entry in _log(tmp_path) if entry["answer"] == "sent"]
        assert sent[-2:] == ["query.hello", "train"]  # its test part is too small for a test


def _log(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "network").rglob(AUDIT)
    return list(AuditLog(path).entries())

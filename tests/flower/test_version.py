"""Another version of Flower than the one whose inside fedatlas knows: nothing starts, and one line says what to do."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedatlas.flower
from fedatlas.cli.app import app
from fedatlas.errors import UsageError
from fedatlas.flower.node.apps import main
from fedatlas.flower.version import REQUIREMENT, WANTED, check_flower
from raising import raises

ROOT = Path(__file__).parents[2]


def _installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    original = metadata.version

    def found(name: str) -> str:
        if name != "flwr":
            return original(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)


@pytest.mark.parametrize("version", ["1.40.3", "1.43.0", "2.0", "1.410.0"])
def test_another_version_starts_nothing(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_flower()
    _installed(monkeypatch, version)
    with raises(UsageError, "package-version", got=version, wanted=REQUIREMENT):
        main()  # before an app could be unpacked without a look into it
    with raises(UsageError, "package-version"):
        fedatlas.flower.make_server_app  # noqa: B018
    said = CliRunner().invoke(app, ["flower", "keys", str(tmp_path / "keys"), "--node", "a"])
    assert (said.exit_code, version in said.output, (tmp_path / "keys").exists()) == (2, True, False)


def test_without_flower_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, None)
    with raises(UsageError, "extra-missing", extra="flower"):
        check_flower()


def test_the_extra_installs_the_version_that_is_wanted() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert REQUIREMENT in extras["flower"]
    assert "flwr==1.41.0" in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("version", ["1.41.0", "1.41.3", "1.42.0"])
def test_the_versions_that_are_known_start(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert version.rpartition(".")[0] in WANTED
    _installed(monkeypatch, version)
    check_flower()

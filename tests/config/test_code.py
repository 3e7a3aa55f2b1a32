"""No code from data: a name in a config or a run's folder starts a function only if somebody here allowed it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedatlas
from fedatlas.algorithms import build_algorithm, user_function
from fedatlas.cli.app import app
from fedatlas.config.config import Config
from fedatlas.errors import UsageError
from fedatlas.runs import Run
from raising import raises

OWN = """
from dataclasses import replace
from pathlib import Path

import fedatlas

Path(__file__).with_name("was-imported").touch()


def gentle(mu: float = 0.5) -> fedatlas.Algorithm:
    return replace(fedatlas.algorithms.fedprox(mu=mu), name="gentle")
"""
SMALL = ["--set", "training.rounds=1", "--set", "model.name=mlp", "--set", "data.test_fraction=0.5"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    return tmp_path


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize(
    "algorithm",
    [
        'name = "subprocess:getoutput"\ncmd = "touch done"',
        'name = "feddisco"\nbase = { name = "subprocess:getoutput", cmd = "touch done" }',
        'name = "mine.py:gentle"',
    ],
)
def test_a_config_starts_no_code(algorithm: str, here: Path) -> None:
    Path("run.toml").write_text(f"[algorithm]\n{algorithm}\n")
    status, output = invoke("train", "--config", "run.toml", *SMALL)
    assert status == 2
    assert "is code, and a config or a run may not start code by itself" in output
    assert "add --allow-code" in output
    with raises(UsageError, "code-not-allowed"):
        Config.load("run.toml").algorithm()
    assert not Path("done").exists()
    assert not Path("was-imported").exists()


def test_a_table_of_compare_starts_no_code(here: Path) -> None:
    Path("run.toml").write_text('[algorithms]\nstrong = { name = "subprocess:getoutput", cmd = "touch done" }\n')
    status, output = invoke("compare", "fedavg", "strong", "--config", "run.toml", *SMALL)
    assert (status, Path("done").exists()) == (2, False)
    assert "--allow-code subprocess:getoutput" in output


def test_a_run_s_folder_starts_no_code_until_it_is_allowed(here: Path) -> None:
    """Typing the name is consent; opening the folder that it left behind is not."""
    status, output = invoke("train", "--algorithm", "mine.py:gentle", "--folder", "run", *SMALL)
    assert status == 0, output
    Path("was-imported").unlink()
    user_function._module.cache_clear()
    client = Run("run").resolved["federation"]["clients"][0]["name"]
    commands = [("train", "--folder", "run", "--resume"), ("adapt", "run", "--client", client, "--rounds", "1")]
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv("FEDATLAS_ALLOW_CODE", "")  # another day, another terminal
        for command in commands:
            status, output = invoke(*command)
            assert status == 2, output
            assert "--allow-code mine.py:gentle" in output
            assert not Path("was-imported").exists()
        assert invoke("report", "run")[0] == 0  # which needs no code
        for command in commands:
            elsewhere.setenv("FEDATLAS_ALLOW_CODE", "")
            status, output = invoke(*command, "--allow-code", "mine.py:gentle")
            assert status == 0, output
        assert Path("was-imported").exists()


def test_one_name_is_allowed_and_no_other(here: Path) -> None:
    fedatlas.allow_code("mine.py:gentle")
    assert build_algorithm("mine.py:gentle", mu=0.1).name == "gentle"
    assert build_algorithm(f"{here}/mine.py:gentle").name == "gentle"
    for name in ("mine.py:Path", "mine.py:replace", "mine:gentle", "other.py:gentle", "os:getcwd"):
        with raises(UsageError, "code-not-allowed", got=name):
            build_algorithm(name)
    for odd in ("gentle", ":gentle", "mine.py:"):
        with raises(UsageError, "wrong-value"):
            fedatlas.allow_code(odd)

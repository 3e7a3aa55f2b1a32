"""The command line of the papers' scripts."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from fedatlas.errors import DataError, UsageError
from papers.options import Options, read_options, script
from raising import raises

PAPERS = Path(__file__).parents[2] / "papers"
SCRIPTS = sorted(
    ".".join(file.relative_to(PAPERS.parent).with_suffix("").parts)
    for file in PAPERS.rglob("*.py")
    if file.parent.name != "tools"  # they have no options
    and "__main__" in file.read_text(encoding="utf-8").splitlines()[-2:][0]
)


def test_options_come_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["table", "--quick", "--seeds", "0,2", "--atlas", "x.safetensors"])
    options = read_options("t", rounds=100, quick_rounds=4, atlas="")
    assert (options.rounds, options.seeds, options.extra) == (4, (0, 2), {"atlas": "x.safetensors"})
    assert options.pick(10, 1) == 1
    monkeypatch.setattr(sys, "argv", ["table", "--rounds", "7"])
    assert read_options("t", rounds=100).rounds == 7
    assert read_options("t", rounds=100, seeds=(3, 4)).seeds == (3, 4)
    monkeypatch.setattr(sys, "argv", ["table", "--quick"])
    assert read_options("t", rounds=100, seeds=(3, 4)).seeds == (3,)
    monkeypatch.setattr(sys, "argv", ["table", "--minutes", "0"])
    assert read_options("t", rounds=1, minutes=9.0).extra["deadline"] is None


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_what_its_options_are_for(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    printed = capsys.readouterr().out
    assert "usage: " in printed
    described = printed[printed.index("\noptions:") :]
    assert re.findall(r"^  (-.*?)(?:  |$)", described, re.MULTILINE)
    assert not re.findall(r"^  (--[a-z-]+(?: [A-Z_]+)?)$\n(?!      )", described, re.MULTILINE)


def test_the_scripts_are_found() -> None:
    assert len([name for name in SCRIPTS if re.search(r"(table|figure)_\d+$", name)]) == 17 + 8 + 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0,x"], "whole numbers separated by commas, such as 0,1,2, got '0,x'"),
        (["--rounds", "0"], "whole number above 0, got '0'"),
        (["--jobs", "many"], "whole number above 0, got 'many'"),
        (["--only", "("], "must be a regular expression, got '('"),
    ],
)
def test_a_wrong_option_is_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["table", *arguments])
    with pytest.raises(SystemExit, match="2"):
        read_options("t", rounds=1)
    assert message in capsys.readouterr().err


def test_names_of_an_option_must_be_known() -> None:
    known = ("CIFAR-10", "Digits")
    assert Options(extra={"sets": "Digits, CIFAR-10"}).listed("sets", known) == ["Digits", "CIFAR-10"]
    assert Options(extra={"sets": ""}).listed("sets", known) == list(known)
    with raises(UsageError, "unknown-name", kind="name in --sets", got="Digit"):
        Options(extra={"sets": "Digit"}).listed("sets", known)


def test_a_script_ends_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(error: BaseException) -> None:
        raise error

    with pytest.raises(SystemExit, match="2"):
        script(broken)(DataError("no images in /there", code="data-empty"))
    assert capsys.readouterr().err == "error: no images in /there\n"
    with pytest.raises(SystemExit, match="130"):
        script(broken)(KeyboardInterrupt())
    assert "The same command goes on with it." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["papers.report", "papers.kept_results"])
def test_a_path_that_leads_nowhere_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "none"), str(tmp_path)])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module(name, run_name="__main__")
    assert "none; check the path" in capsys.readouterr().err

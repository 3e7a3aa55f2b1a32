"""What all commands share: help, lists, mistakes and places to write to."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from typer.main import get_command

from commands import SMALL, invoke
from fedatlas.cli.app import app
from fedatlas.cli.catalogue import CATALOGUES
from fedatlas.cli.flower import app as flower
from fedatlas.cli.terminal import print_error, print_lines, print_rows, remark
from fedatlas.config import SETTINGS
from fedatlas.errors import UsageError


def test_list_names_everything_with_a_line() -> None:
    result = invoke("list")
    assert result.exit_code == 0
    for name in ("fedprox", "client2vec", "digits", "cifar10", "dirichlet", "resnet18", "adam"):
        assert re.search(rf"^{name} +\S+", result.output, re.M), name
    assert re.search(r"^client2vec is any of them .* --atlas FILE", result.output, re.M)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_printed(option: str) -> None:
    result = invoke(option)
    assert (result.exit_code, result.stdout) == (0, f"fedatlas {metadata.version('fedatlas')}\n")


@pytest.mark.parametrize("group", [[], ["flower"]])
def test_commands_alone_print_their_help_on_the_output(group: list[str]) -> None:
    alone = invoke(*group)
    assert (alone.exit_code, alone.stderr) == (0, "")
    assert alone.stdout == invoke(*group, "--help").stdout
    assert "Commands:" in alone.stdout
    assert invoke(*group, "--nothing").exit_code == invoke(*group, "nothing").exit_code == 2


def test_every_command_takes_h_for_help() -> None:
    groups = [([], get_command(app)), (["flower"], get_command(flower))]
    names = [[*group, name] for group, commands in groups for name in commands.commands]  # type: ignore[attr-defined]
    assert len(names) > 15
    for words in ([], *names):
        result = invoke(*words, "-h")
        assert result.exit_code == 0, words
        assert "-h, --help" in result.stdout, words


def test_list_tells_what_leaves_a_client() -> None:
    result = invoke("list", "--disclosures")
    assert re.search(r"^fedavg +nothing beyond the change of the model", result.output, re.M)
    assert re.search(r"^map client2vec global +up to 128 of its examples", result.output, re.M)
    assert re.search(r"^map client2vec federated +the change of the index network", result.output, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--algorithm", "fedpox"], "Did you mean 'fedprox'"),
        (["train", "--set", "training.cohort=5000"], "cohort must be between 1 and the"),
        (["train", "--model", "resnet81"], "Did you mean 'resnet18'"),
        (["train", "--device", "cuda"], "torch sees no GPU here"),
        (["train", "--device", "gpu"], "torch knows no device 'gpu'; use --device cpu, cuda or cuda:N"),
        (["map", "--device", "gpu"], "torch knows no device 'gpu'"),
        (["adapt", "nowhere"], "holds no run"),
        (["flower", "node", "--client", "a", "--device", "gpu"], "torch knows no device 'gpu'"),
        (["train", "--set", "training.cohort=abc"], "training.cohort must be a whole number, a fraction or nothing"),
        (["train", "--data", "nowhere.npz"], "nowhere.npz"),
        (["list", "algorithm"], "Did you mean 'algorithms'"),
        (["compare", "fedavg", "--seeds", "one"], "--seeds takes whole numbers"),
        (["report", "nowhere"], "holds no run"),
    ],
)
def test_a_mistake_gets_one_clear_message(arguments: list[str], message: str, tmp_path: Path) -> None:
    if arguments[0] in ("train", "compare"):
        arguments = [*arguments, "--folder", str(tmp_path / "run")]
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_square_brackets_are_printed_as_they_are(
    arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "q[red]1:heart:"
    result = invoke("train", "--data", arrays, *SMALL, "--folder", folder)
    assert result.exit_code == 0, result.output
    assert f"run: {folder}\nreport: {folder / 'report.html'}" in result.output
    assert f"{folder} already holds a run" in invoke("train", "--data", arrays, *SMALL, "--folder", folder).output
    print_rows([{"client": "a[bold]b", "accuracy": "90.0"}], "[percent]")
    print_lines("a [title]", {"one": "fedatlas[hub]"})
    assert re.findall(r"\S*\[\w+\]\S*", capsys.readouterr().out) == [
        "a[bold]b",
        "[percent]",
        "[title]",
        "fedatlas[hub]",
    ]


def test_nothing_that_is_printed_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "Lyon\x1b[2J\x9b1A\u202e\ud800\r"
    print_rows([{"client": name, name: "1"}], name)
    print_lines(name, {name: name}, note=name)
    remark(name)
    print_error("error:", UsageError(f"no client {name}", code="no-client"))
    found = capsys.readouterr()
    assert not set("\x1b\x9b\u202e\ud800\r") & set(found.out + found.err)
    assert r"Lyon\x1b[2J\x9b1A\u202e\ud800\r" in found.err


def test_the_help_of_every_option_says_something_and_names_the_defaults() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        for parameter in getattr(command, "params", ()):
            assert name == "flower" or parameter.name == "help" or parameter.help, (name, parameter.name)
    helps = {parameter.name: parameter.help for parameter in commands["train"].params}
    keys = {"algorithm": "algorithm.name", "data": "data.source", "seed": "seed", "rounds": "training.rounds"}
    for title, key in keys.items():
        assert f"default {SETTINGS[key].default}." in helps[title]
    assert "default sample,aggregate." in helps["use"]
    (kind,) = (parameter.help for parameter in commands["list"].params if parameter.name == "kind")
    assert [title for title in CATALOGUES if title not in kind] == []


def test_a_place_that_cannot_be_written_is_named_before_the_work(arrays: Path, tmp_path: Path) -> None:
    data = ["--data", arrays, "--source", "label-histogram"]
    assert invoke("train", "--data", arrays, *SMALL, "--folder", tmp_path / "run").exit_code == 0
    for command, usual in ((["map", *data], "atlas.safetensors"), (["report", tmp_path / "run"], "report.html")):
        result = invoke(*command, "--to", tmp_path)
        assert result.exit_code == 2, result.output
        assert f"is a folder. Write --to {tmp_path / usual}." in result.output
        result = invoke(*command, "--to", arrays / usual)
        assert result.exit_code == 2, result.output
        assert f"--to: {arrays} is a file, and a folder is needed there" in result.output
        assert "accuracy" not in result.output

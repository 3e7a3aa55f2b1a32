"""Guards on what users rely on: public names, the command line, the README."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import fedatlas
from fedatlas.algorithms import ALGORITHMS
from fedatlas.cli.app import app
from fedatlas.config import Config
from fedatlas.training import Settings, fingerprint

ROOT = Path(__file__).parent.parent

DOOR = """
SGD Adam Algorithm AlgorithmCheckError Atlas Batch ByGroup Callback Client ClientContext ClientData ClientInfo Cohort
Combination Config CsvLog DataError Dataset Disclosure EarlyStopping FedatlasError Federation Gathered LocalOptimizer
Metric MlflowLog Output Roster Run RunFolderError Sampler Seeds ServerRule Settings Sharing Simulator Split
TensorBoardLog Tensors Term TrainingError UsageError Verdict WandbLog Weighting adapt adapting algorithms allow_code
atlas check check_algorithm compare data federate from_arrays from_huggingface from_image_folder from_npz from_table
from_torch load_dataset make_atlas metric_function models play report testing train
"""

OPTIONS = {
    "adapt": {
        "run",
        "client",
        "data",
        "data_folder",
        "start",
        "atlas",
        "labels",
        "compare",
        "compile",
        "examples",
        "rounds",
        "steps",
        "tune",
        "lr",
        "device",
        "save",
        "onnx",
        "allow_code",
    },
    "check": {"run", "config", "set_", "data", "data_folder", "seed", "encoder", "as_json", "html", "open_", "share"},
    "compare": {
        "config",
        "set_",
        "data",
        "data_folder",
        "model",
        "rounds",
        "seeds",
        "atlas",
        "use",
        "groups",
        "level",
        "jobs",
        "device",
        "workers",
        "engine",
        "folder",
        "resume",
        "overwrite",
        "algorithms",
        "allow_code",
        "open_",
        "local",
    },
    "demo": {"folder", "workers", "rounds"},
    "flower": set(),
    "export": {"run", "to", "client", "group", "onnx", "huggingface"},
    "list": {"kind", "disclosures"},
    "map": {
        "config",
        "set_",
        "data",
        "data_folder",
        "seed",
        "run",
        "source",
        "encoder",
        "encoder_path",
        "strategy",
        "epochs",
        "device",
        "workers",
        "to",
        "open_",
        "share",
    },
    "report": {"runs", "to", "open_", "share"},
    "train": {
        "config",
        "set_",
        "algorithm",
        "data",
        "data_folder",
        "model",
        "rounds",
        "seed",
        "atlas",
        "use",
        "groups",
        "level",
        "device",
        "workers",
        "engine",
        "folder",
        "resume",
        "overwrite",
        "profile",
        "allow_code",
        "open_",
        "log",
    },
}


def test_the_door_has_these_names_and_no_others() -> None:
    assert " ".join(fedatlas.__all__) == " ".join(DOOR.split())
    assert dir(fedatlas) == sorted(fedatlas.__all__)
    assert all(getattr(fedatlas, name) is not None for name in fedatlas.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'fedprox'"):
        fedatlas.fedprox  # noqa: B018


def test_docs_import_from_the_door_and_the_public_rooms() -> None:
    rooms = ("adapting", "algorithms", "atlas", "data", "models", "report", "seeds", "testing")
    public = {"fedatlas", *(f"fedatlas.{room}" for room in rooms)}
    inside = {f"fedatlas.engines.{file}" for file in ("engine", "registry", "workers")}  # what an engine is built on
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedatlas"):
                    assert node.module in public | (inside if page.name == "engines.md" else set()), page.name
                    exec(ast.unparse(node), {})


def test_the_command_line_keeps_its_options() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    found = {name: {p.name for p in command.params if p.name != "help"} for name, command in commands.items()}
    assert found == OPTIONS


def test_the_readme_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    code = blocks[0].replace("rounds=20", "rounds=2")
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 10
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120, capture_output=True)


def test_the_readme_s_first_command_has_the_clients_of_its_example() -> None:
    code, command = _readme_s_first()
    words = shlex.split(command)
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    config = Config.load(None, settings, data={"source": "digits"})
    example: dict[str, Any] = {}
    exec(code[: code.index("print(")], example)
    assert fingerprint(config.federation()) == fingerprint(example["federation"])


def test_the_readme_s_first_command_trains_as_its_example_does() -> None:
    code, command = _readme_s_first()
    (call,) = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and _is_train(node)]
    given = {str(own.arg): ast.literal_eval(own.value) for own in call.keywords}
    words = shlex.split(command)
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    config = Config.load(None, settings, model={"name": words[words.index("--model") + 1]})
    example, found = Settings(**given), config.run_settings()
    assert (found.model, found.work, found.plan, found.seeds) == (
        example.model,
        example.work,
        example.plan,
        example.seeds,
    )
    assert config.algorithm().optimizer == fedatlas.algorithms.fedavg().optimizer


@pytest.mark.slow
def test_the_readme_s_first_command_prints_the_figures_of_its_example(tmp_path: Path) -> None:
    code, command = _readme_s_first()
    run = {"cwd": tmp_path, "check": True, "timeout": 300, "capture_output": True, "text": True}
    example = subprocess.run([sys.executable, "-c", code], **run).stdout  # type: ignore[call-overload]
    words = [sys.executable, "-m", *shlex.split(command)]
    table = subprocess.run(words, **run, env={**os.environ, "COLUMNS": "200"}).stdout  # type: ignore[call-overload]
    readme = (ROOT / "README.md").read_text()
    said = re.findall(r"^(?:fedavg|grouped) \S+ worst \S+$", example, re.M)
    assert len(said) == 2
    assert "\n".join(said) in readme
    (told,) = re.findall(r"# the ten lines' second run: grouped (\S+), worst client (\S+)", readme)
    assert {"grouped", *told} <= {*table.splitlines()[1].split()}
    assert said[1] == f"grouped {float(told[0]):.0f}%, worst {float(told[1]):.0f}%"


def _readme_s_first() -> tuple[str, str]:
    """Return the README's ten lines, and the command beside them."""
    readme = (ROOT / "README.md").read_text()
    command = re.search(r"^fedatlas train --data digits .*?--folder \S+", readme, re.S | re.M)
    assert command
    return re.findall(r"```python\n(.*?)```", readme, re.S)[0], command[0].replace("\\\n", "")


def _is_train(call: ast.Call) -> bool:
    return ast.unparse(call.func) == "fedatlas.train"


def test_the_table_of_algorithms_names_every_one() -> None:
    table = (ROOT / "docs/algorithms/README.md").read_text()
    assert [name for name in ALGORITHMS if f"[`{name}`]({name}.md)" not in table] == []


def test_the_readme_s_make_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", readme):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_algorithm_has_its_docs_page_with_the_same_sections() -> None:
    for name in ALGORITHMS:
        page = (ROOT / f"docs/algorithms/{name}.md").read_text()
        for heading in (
            "## Formula",
            "## Settings",
            "## Departures",
            "## What leaves a client",
            "## Run it",
            "## Reference",
        ):
            assert heading in page, (name, heading)


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("papers/**/*.md")]


def _anchors(page: Path) -> set[str]:
    """Return a page's anchors as GitHub makes them of its headings; a heading that comes again gets a number."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.M):
        words = re.sub(r"\]\([^)]*\)", "", heading).lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return {f"{slug}-{n}" if (n := found[:i].count(slug)) else slug for i, slug in enumerate(found)}


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
            if "://" in target:
                continue
            goal = page.parent / target if target else page
            assert goal.exists(), (page.name, target)
            assert not anchor or anchor in _anchors(goal), (page.name, f"{target}#{anchor}")


def test_files_that_the_docs_name_are_there() -> None:
    """A path from the repository's root, wherever it is written, and a room's file in backticks; NAME may be any."""
    folders = "benchmarks|configs|docs|papers|src|tests"
    for page in PAGES:
        text = page.read_text()
        named = re.findall(rf"(?<![\w./:-])((?:{folders})/[\w./-]*\w)", text)
        named += [
            f"src/fedatlas/{path}" for path in re.findall(r"`([a-z_]+/[a-z0-9_/]+\.py)`", text) if path not in named
        ]
        for path in (path for path in named if not re.search(r"\b[A-Z]{2,}\b", path)):
            assert (ROOT / path).exists(), (page.name, path)


def test_files_stay_small() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 500, path
        ast.parse(path.read_text())


def test_importing_the_package_loads_nothing() -> None:
    slow = ("PIL", "datasets", "flwr", "matplotlib", "numpy", "onnx", "pandas", "rich", "scipy", "sklearn", "torch")
    slow += ("transformers", "typer")
    assert _loaded("import fedatlas", slow) == []


def test_training_loads_nothing_slow_beside_torch() -> None:
    slow = ("PIL", "datasets", "flwr", "matplotlib", "onnx", "pandas", "rich", "scipy", "sklearn", "torch._dynamo")
    slow += ("torch._inductor", "transformers", "typer")
    assert _loaded("import fedatlas; fedatlas.train, fedatlas.load_dataset, fedatlas.algorithms.fedavg()", slow) == []


def _loaded(code: str, names: tuple[str, ...]) -> list[str]:
    code = f"import sys; {code}; print(*[name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    return done.stdout.split()


def test_the_package_s_description_has_no_link_that_an_index_would_break() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    description = (ROOT / project["readme"]).read_text()
    assert not re.findall(r"\]\((?!https://)|<img|src=", description)
    assert "CUDA" in description
    assert not [pin for pin in project["optional-dependencies"]["flower"] if "==" in pin]
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)} <= {*project["classifiers"]}

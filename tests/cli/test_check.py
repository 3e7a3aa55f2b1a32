import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedatlas import Config, train
from fedatlas.algorithms import fedavg
from fedatlas.cli.app import app
from fedatlas.cli.check import fit
from fedatlas.seeds import numpy_generator
from report.pages import read_block


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _table(path: Path, *, swapped: bool = False) -> Path:
    """Write three clinics with two measurements; ill people have more of both."""
    rng = numpy_generator(0, "clinics")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["clinic", "pulse", "pressure", "label"])
        for clinic in ("north", "south", "west"):
            for i in range(80):
                ill = i % 2
                called = 1 - ill if swapped and clinic == "west" else ill
                rows.writerow(
                    [clinic, *(round(float(v), 2) for v in rng.normal((70 + 30 * ill, 120 + 40 * ill), 10)), called]
                )
    return path


def test_heart_has_suspects_and_status_4() -> None:
    done = invoke("check", "--data", "heart")
    assert done.exit_code == 4
    assert "switzerland: column 'chol': 0 stands for missing" in done.stdout
    told = fit([*done.stderr.splitlines(), *done.stdout.splitlines()], 80)
    assert sum(-(-len(line) // 80) for line in told) <= 24, "less than a screen"


def test_advice_keeps_what_is_left_out_already() -> None:
    given = ["--data", "heart", "--set", 'data.drop=["age"]', "--set", 'data.held_out=["cleveland"]']
    said = json.loads(invoke("check", *given, "--json").stdout)
    (without,) = [command for command in said["advice"] if "chol" in command]
    assert without.endswith("""--set 'data.drop=["age", "chol"]'""")


def test_json_is_all_that_is_printed() -> None:
    done = invoke("check", "--data", "heart", "--json")
    said = json.loads(done.stdout)
    assert {"clients", "shift", "groups", "suspects", "advice"} <= set(said)
    assert [own["client"] for own in said["suspects"]] == ["switzerland", "va"]
    assert set(said["groups"]) == {"cleveland", "hungarian", "switzerland", "va"}


def test_a_suspect_has_another_status_than_a_mistyped_option() -> None:
    assert invoke("check", "--dta", "heart").exit_code == 2
    assert invoke("check", "--data", "heart", "--json").exit_code == 4
    assert "4 a suspect" in invoke("check", "--help").stdout


def test_nothing_to_do_is_status_0_and_an_inverted_clinic_4(tmp_path: Path) -> None:
    file = _table(tmp_path / "clinics.csv")
    done = invoke("check", "--data", file, "--set", "data.client=clinic")
    assert done.exit_code == 0, done.output
    assert f"fedatlas train --set data.client=clinic --data {file}" in done.stdout
    file = _table(tmp_path / "west.csv", swapped=True)
    done = invoke("check", "--data", file, "--set", "data.client=clinic", "--json")
    assert done.exit_code == 4
    (suspect,) = json.loads(done.stdout)["suspects"]
    assert (suspect["client"], suspect["kind"]) == ("west", "labels-inverted")


def test_other_label_shares_are_advice_and_status_1() -> None:
    partition = 'data.partition={name="dirichlet", num_clients=4, alpha=0.3}'
    done = invoke("check", "--data", "digits", "--set", 'data.domains=["handwritten"]', "--set", partition)
    assert done.exit_code == 1, done.output
    assert "label shares differ: yes" in done.stdout
    assert "suspects: none" in done.stdout


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "", "clinic,label\nx,1\n"])
def test_data_that_cannot_be_used_are_status_3_with_one_message(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broken.csv"
    file.write_text(content)
    done = invoke("check", "--data", file)
    assert done.exit_code == 3
    assert done.stdout == ""
    assert done.stderr.count("error:") == 1


def test_made_up_clients_a_lone_client_and_very_many_columns_are_told(tmp_path: Path) -> None:
    file = _table(tmp_path / "clinics.csv")
    done = invoke("check", "--data", file, "--set", 'data.drop=["clinic"]')
    assert "so these clients are made up" in " ".join(done.stderr.split())
    lone = tmp_path / "lone.csv"
    kept = (line for line in file.read_text().splitlines(True) if line.startswith(("clinic", "north")))
    lone.write_text("".join(kept))
    done = invoke("check", "--data", lone, "--set", "data.client=clinic")
    assert done.exit_code == 0
    assert "lone: 1 client (north)" in done.stdout
    assert "cannot be told: Whether this client is like others: it is alone." in done.stdout
    rng = numpy_generator(0, "wide")
    names = ",".join(f"g{j}" for j in range(2100))
    rows = "".join(f"{'abc'[i % 3]},{i % 2},{','.join(map(str, rng.integers(0, 9, 2100)))}\n" for i in range(30))
    (tmp_path / "wide.csv").write_text(f"site,label,{names}\n{rows}")
    done = invoke("check", "--data", tmp_path / "wide.csv")
    assert "Faults of single columns: there are 2,100, and 2,000 are the most." in " ".join(done.stdout.split())


def test_the_page_stands_alone_and_escapes_names(tmp_path: Path) -> None:
    file = _table(tmp_path / "west.csv", swapped=True)
    file.write_text(file.read_text().replace("west", "<west>"))
    page = tmp_path / "pages" / "check.html"
    done = invoke("check", "--data", file, "--set", "data.client=clinic", "--html", page)
    assert done.exit_code == 4, done.output
    assert "<west>" not in page.read_text()
    block = read_block(page)
    assert "<west>" in block["clients"]["name"]
    (suspect,) = block["check"]["suspects"]
    assert block["clients"]["name"][suspect["client"]] == "<west>"
    assert "look inverted" in suspect["text"]
    assert block["act"]["given"] == f"--set data.client=clinic --data {file}"
    assert f"page: {page}" in done.stdout
    done = invoke("check", "--data", file, "--set", "data.client=clinic", "--open")
    assert done.exit_code == 3
    assert "name its file with --html" in done.stderr


def test_a_run_s_clients_are_checked_with_the_run_s_config(tmp_path: Path) -> None:
    config = Config.read(None, ["training.rounds=1", "data.source=heart"])
    folder = tmp_path / "run"
    done = invoke("train", "--data", "heart", "--rounds", 1, "--folder", folder)
    assert done.exit_code == 0, done.output
    done = invoke("check", folder)
    assert done.exit_code == 4
    assert f"fedatlas check --config {folder / 'config.toml'}" in done.stdout
    assert config.federation().name in done.stdout


def test_a_run_from_python_does_not_know_its_data(tmp_path: Path) -> None:
    federation = Config.read(None, ["data.source=heart"]).federation()
    train(federation, fedavg(), rounds=1, folder=tmp_path / "run", model="linear")
    done = invoke("check", tmp_path / "run")
    assert done.exit_code == 3
    assert "was made in Python" in done.stderr

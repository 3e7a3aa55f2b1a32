"""The benchmarks run, at a size where what they measure means nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.undone import MENDINGS

ROOT = Path(__file__).parent.parent


def _run(script: str, *options: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    subprocess.run(command, check=True, timeout=200, capture_output=True, env=environment)


@pytest.mark.slow
def test_ours_and_the_plain_loops_are_measured_in_turns(tmp_path: Path) -> None:
    out = str(tmp_path)
    _run("run.py", "--workloads", "tiny", "--repetitions", "1", "--contenders", "fedatlas,naive", "--out", out)
    found = json.loads((tmp_path / "results.json").read_text())["workloads"]["tiny"]
    assert found.keys() == {"fedatlas", "fedatlas, bfloat16", "naive loop"}
    assert all(len(told["seconds"]) == 3 and told["round"] > 0 for (told,) in found.values())
    assert "| naive loop |" in (tmp_path / "results.md").read_text()


@pytest.mark.slow
def test_the_benchmark_for_a_gpu_also_runs_on_a_cpu(tmp_path: Path) -> None:
    _run("gpu.py", "--tiny", "--device", "cpu", "--only", "D", "E", "--out", str(tmp_path))
    found = json.loads((tmp_path / "results.json").read_text())
    engines = {"E, plain loop", "E, our engine", "E, our engine, compiled"}
    assert found.keys() == {"D, float32", "D, bfloat16", *engines, "E, centralised, batch 6"}
    assert all(told["samples_per_second"] > 0 for (told,) in found.values())


@pytest.mark.slow
def test_the_page_s_size_and_times_are_printed() -> None:
    from report.browser import NO_BROWSER, find_chromium

    if find_chromium() is None:
        pytest.skip(NO_BROWSER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "benchmarks" / "page.py"), "--clients", "10"]
    done = subprocess.run(command, check=True, timeout=200, capture_output=True, text=True, env=environment)
    cells = [float(cell) for cell in done.stdout.splitlines()[-1].strip("| ").split("|")]
    assert cells[0] == 10
    assert 10 < cells[1] < 1000
    assert all(cell > 0 for cell in cells[2:])


def test_bytes_over_the_network_are_counted_and_the_run_has_the_simulators_bits() -> None:
    from benchmarks.flower import measure_sizes

    (sizes,) = measure_sizes(num_nodes=2, cases=("fedavg",))
    down, up = sizes.training
    # Both ways a client's message holds the model in floats of four bytes, and little else.
    assert 4 * sizes.parameters < min(down, up) <= max(down, up) < 4.2 * sizes.parameters
    assert sizes.before == (0, 0)
    assert sizes.same


@pytest.mark.slow
def test_what_saving_and_a_kill_cost_is_measured() -> None:
    _run("saving.py", "--rounds", "300", "--kills", "1")


def test_what_undoes_a_mending_is_still_in_the_source() -> None:
    """Else nobody would see whether its tests can fail."""
    for mending in MENDINGS:
        for name, text, _ in mending.undone:
            assert text in (ROOT / name).read_text(), (mending.defect, name)
        assert (ROOT / mending.tests.partition(" ")[0]).exists(), mending.tests


@pytest.mark.slow
def test_very_many_clients_end_in_a_report() -> None:
    _run("many.py", "--clients", "12000")

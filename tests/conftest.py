import os
import tempfile

import pytest
import torch

# Read when Flower is imported: nothing is reported, and nothing written into anybody's home.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--faults", action="store_true", help="also run the whole campaign of faults and attacks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name in ("slow", "faults"):
        if config.getoption(f"--{name}"):
            continue
        for item in items:
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.skip(reason=f"takes minutes; run with --{name}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were skipped for want of a browser or of axe-core; those of --slow are not named."""
    wanting: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if reason.startswith(("Skipped: no browser", "Skipped: no axe-core")):
            wanting.setdefault(reason, []).append(report.nodeid.rpartition("::")[2])
    for reason, names in wanting.items():
        terminalreporter.write_line(f"{reason}. Left out: {', '.join(sorted(names))}")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_code_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that one test allows is not allowed in the next."""
    monkeypatch.setenv("FEDATLAS_ALLOW_CODE", "")


@pytest.fixture(autouse=True, scope="session")
def _runs_in_pytest_s_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs without a folder go where pytest throws them away, and do not pile up in the machine's."""
    tempfile.tempdir = str(tmp_path_factory.mktemp("temporary"))
    os.environ["FEDATLAS_CACHE"] = str(tmp_path_factory.mktemp("cache"))

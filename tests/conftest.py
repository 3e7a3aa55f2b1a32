import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch

# Read when Flower is imported: nothing is reported, and nothing written into anybody's home.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
OUTCOMES = "outcomes"
ATTACK_SECONDS = 900
"""An attack that takes longer hangs; over real processes it takes a minute."""


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
    """Print how the trials of the campaign ended; name the tests that were skipped for want of a tool."""
    wanting: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if reason.startswith(("Skipped: no browser", "Skipped: no axe-core")):
            wanting.setdefault(reason, []).append(report.nodeid.rpartition("::")[2])
    for reason, names in wanting.items():
        terminalreporter.write_line(f"{reason}. Left out: {', '.join(sorted(names))}")
    if terminalreporter.config.getoption("--faults"):
        _print_outcomes(terminalreporter)


def _print_outcomes(terminalreporter: pytest.TerminalReporter) -> None:
    from campaign import WRONG, table

    found: dict[str, Counter[str]] = {}
    for report in (*terminalreporter.stats.get("passed", []), *terminalreporter.stats.get("failed", [])):
        for name, (row, outcomes) in report.user_properties if report.when == "call" else ():
            if name == OUTCOMES:
                # What went wrong in a test that fails without an outcome is not known: the worst is assumed.
                found.setdefault(row, Counter()).update(outcomes if report.passed or len(outcomes) > 1 else {WRONG: 1})
    rows = table(found)
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in (rows[0] if rows else ())}
    for row in ({name: name for name in widths}, *rows):
        line = "  ".join(cell.rjust(widths[name]) for name, cell in row.items() if name != "fault")
        terminalreporter.write_line(f"{row['fault'].ljust(widths['fault'])}  {line}")


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Callable[[str, Counter[str]], None]:
    """Keep how the trials of a row ended, for the table at the end."""
    # Processes of the tests send each other plain types only.
    return lambda row, outcomes: request.node.user_properties.append((OUTCOMES, (row, dict(outcomes))))


@pytest.fixture(autouse=True)
def _attacks_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Count an attack that was held against; one that takes too long is a failure."""
    marker = request.node.get_closest_marker("attack")
    if marker is None:
        yield
        return
    from campaign import REFUSED, limited

    request.node.user_properties.append((OUTCOMES, (marker.args[0], {REFUSED: 1})))
    with limited(ATTACK_SECONDS):
        yield


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

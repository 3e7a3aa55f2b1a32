import os
import tempfile

import pytest
import torch

# Read when Flower is imported: nothing is reported, and nothing written into anybody's home.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with --slow"))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _runs_in_pytest_s_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs without a folder go where pytest throws them away, and do not pile up in the machine's."""
    tempfile.tempdir = str(tmp_path_factory.mktemp("temporary"))

from collections.abc import Iterator

import pytest

from report.browser import start_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """One browser for all tests of a process."""
    with start_browser() as started:
        yield started

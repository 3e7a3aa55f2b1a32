from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a user's own arrays: 120 small images of three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.uniform(0, 80, (120, 6, 6, 3)) + 80 * y[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    np.savez(path, x=x, y=y)
    return path

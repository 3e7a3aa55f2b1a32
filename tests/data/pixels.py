"""Images for tests."""

import numpy as np


def noise(*shape: int) -> np.ndarray:
    """Return the same bytes each time, in any shape."""
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)

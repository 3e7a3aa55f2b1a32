"""Where results are kept that need to be computed only once: decoded pictures, embeddings."""

import os
from pathlib import Path

CACHE_VARIABLE = "FEDATLAS_CACHE"
DEFAULT_FOLDER = "~/.cache/fedatlas"


def cache_folder() -> Path:
    """Return the folder ``FEDATLAS_CACHE``, else ``~/.cache/fedatlas``. It may be deleted at any time."""
    return Path(os.environ.get(CACHE_VARIABLE) or DEFAULT_FOLDER).expanduser()

"""The memory of this machine."""

import os


def physical_memory() -> int:
    """Return how many bytes of RAM the machine has; eight gigabytes if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * 10**9

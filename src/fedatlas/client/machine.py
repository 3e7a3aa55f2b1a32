"""The memory of this process: keeping memory that was freed."""

import ctypes
import platform
from functools import cache

import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_LARGEST = 2**30


def keep_freed_memory(device: torch.device) -> bool:
    """Let the C library keep freed memory for the next tensor, if a CPU computes; return whether it does.

    By default glibc hands large blocks back to the system and takes new ones, which the system has to clear: for the
    activations of a small convolutional network that costs a quarter of a training step, and more of an encoder's.
    """
    return device.type == "cpu" and _keep()


@cache
def _keep() -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(library.mallopt(_TRIM_THRESHOLD, _LARGEST))

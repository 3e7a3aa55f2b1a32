import platform

import torch

from fedatlas.client.machine import keep_freed_memory
from fedatlas.data import physical_memory


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    assert keep_freed_memory(torch.device("cpu")) == (platform.libc_ver()[0] == "glibc")
    assert not keep_freed_memory(torch.device("cuda"))


def test_the_machine_has_some_memory() -> None:
    assert physical_memory() > 2**28

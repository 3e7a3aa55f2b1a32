import platform

from fedatlas.process_memory import keep_freed_memory, physical_memory


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_the_machine_has_some_memory() -> None:
    assert physical_memory() > 2**28

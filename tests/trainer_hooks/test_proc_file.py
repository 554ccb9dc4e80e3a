"""Files of /proc that stay open between reads."""

import mmap
from pathlib import Path

import pytest

from holdfast_hooks.proc_file import ProcFile


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_each_read_returns_what_is_there_now_and_opens_nothing() -> None:
    file = ProcFile("/proc/self/statm")
    first, opened = file.read(), open_files()
    with mmap.mmap(-1, 64 << 20):  # what malloc gives may come from memory that an earlier test has freed
        assert file.read() != first
    assert open_files() == opened


def test_the_file_is_closed_with_its_reader() -> None:
    before = open_files()
    file = ProcFile("/proc/self/statm")
    file.read()
    assert open_files() == before + 1
    del file
    assert open_files() == before


def test_a_file_that_is_not_there_is_an_error_at_each_read(tmp_path: Path) -> None:
    file = ProcFile(str(tmp_path / "none"))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            file.read()

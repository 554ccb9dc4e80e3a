import os
from pathlib import Path

import pytest

from holdfast_proto.atomic_file import PARTIAL_SUFFIX, replace_file, replacement


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_file_is_created_and_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    for text in ("one", "two"):
        replace_file(tmp_path / "file.json", text.encode())
        assert contents(tmp_path) == {"file.json": text}


@pytest.mark.parametrize(
    ("mode", "umask", "permissions"), [(0o600, 0, 0o600), (0o644, 0, 0o644), (0o666, 0o027, 0o640)]
)
def test_permissions_are_those_of_the_mode_that_the_umask_allows(
    mode: int, umask: int, permissions: int, tmp_path: Path
) -> None:
    old = os.umask(umask)
    try:
        replace_file(tmp_path / "file", b"x", mode=mode)
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == permissions


def test_what_a_writer_that_died_has_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / f"file{PARTIAL_SUFFIX}").symlink_to(tmp_path / "elsewhere")
    replace_file(tmp_path / "file", b"x")
    assert contents(tmp_path) == {"file": "x"}


def test_reader_finds_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    with replacement(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert contents(tmp_path) == {"file": "new"}


def test_failed_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"old")
    with pytest.raises(KeyboardInterrupt), replacement(tmp_path / "file") as partial:
        partial.write_text("ne")
        raise KeyboardInterrupt
    assert contents(tmp_path) == {"file": "old"}


def test_a_file_takes_the_place_of_no_pipe_and_no_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="no regular file"):
            replace_file(tmp_path / name, b"new")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]

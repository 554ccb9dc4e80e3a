import mmap
import os
from pathlib import Path

import pytest

from holdfast_base.files import (
    PARTIAL_SUFFIX,
    ProcFile,
    SecretError,
    distrust,
    exposure,
    make_directory,
    make_folder_of_run,
    make_private_directory,
    make_run_directory,
    read_secret,
    replace_file,
    replacement,
    share_file,
)


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


OTHER_USER = 12345


def test_folder_is_made_for_this_user_alone_and_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        make_private_directory(folder, "--runtime-directory")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("umask", "mode"), [(0o022, 0o755), (0o002, 0o755), (0o027, 0o750), (0o077, 0o700), (0, 0o700), (0o020, 0o700)]
)
def test_nobody_else_can_write_in_a_folder_or_in_its_new_parents_whatever_the_umask(
    umask: int, mode: int, tmp_path: Path
) -> None:
    old = os.umask(umask)
    try:
        make_directory(tmp_path / "a" / "b")
        make_private_directory(tmp_path / "c" / "private", "--runtime-directory")
        (tmp_path / "file").touch()
    finally:
        assert os.umask(old) == umask
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "c")]
    assert modes == [mode] * 3
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize(("share", "folder", "file"), [(False, 0o700, None), (True, 0o2750, 0o640)])
def test_the_group_reads_the_files_of_a_shared_run_and_nobody_else_those_of_another(
    tmp_path: Path, umask: int, folder: int, file: int | None, *, share: bool
) -> None:
    run, evidence = tmp_path / "run", tmp_path / "run" / "incidents" / "0001"
    old = os.umask(umask)
    try:
        make_run_directory(run, share=share)
        make_folder_of_run(evidence)
        replace_file(evidence / "story", b"")
        replace_file(evidence / "secret", b"", mode=0o600)
        (evidence / "log").touch(0o600)
        share_file(evidence / "log")
    finally:
        os.umask(old)
    folders = [path.stat().st_mode & 0o7777 for path in (run, evidence.parent, evidence)]
    assert folders == [folder] * 3
    modes = [(evidence / name).stat().st_mode & 0o777 for name in ("story", "log", "secret")]
    assert modes == [file or 0o666 & ~umask, file or 0o600, 0o600]


def test_a_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    make_directory(folder)
    make_run_directory(folder, share=True)
    assert folder.stat().st_mode & 0o7777 == 0o777


def test_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match=r"^/.*/link is a symbolic link: .*--runtime-directory$"):
        make_private_directory(tmp_path / "link", "--runtime-directory")


def test_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o711)
    with pytest.raises(PermissionError, match=r"open to others \(mode 0711.*--runtime-directory"):
        make_private_directory(folder, "--runtime-directory")


def test_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="--runtime-directory"):
        make_private_directory(tmp_path / "file", "--runtime-directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    file = tmp_path / "record.pb"
    replace_file(file, b"x", mode=0o600)
    os.chown(file, OTHER_USER, -1)
    assert "another user" in distrust(file)


def test_folder_of_another_user_is_refused_by_who_owns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "squatted"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    with pytest.raises(PermissionError, match=f"belongs to another user .uid {os.getuid()}.*--runtime-directory"):
        make_private_directory(folder, "--runtime-directory")


def test_file_is_trusted_if_only_this_user_can_have_written_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    old = os.umask(0)
    try:
        replace_file(file, b"one", mode=0o600)
        replace_file(file, b"two", mode=0o600)
    finally:
        os.umask(old)
    assert (file.read_bytes(), file.stat().st_mode & 0o777, distrust(file)) == (b"two", 0o600, "")
    file.chmod(0o620)
    assert "can be written by others" in distrust(file)
    (tmp_path / "link").symlink_to(file)
    assert distrust(tmp_path / "link") == "is not a regular file"


def test_file_on_a_file_system_that_maps_its_users_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file(tmp_path / "file", b"x", mode=0o600)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)  # as on NFS, where root has no rights
    assert distrust(tmp_path / "file") == ""


def test_a_secret_is_the_only_line(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" a-secret \n")
    assert read_secret(file) == "a-secret"


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", b"\xff", b"x" * 20_000])
def test_what_holds_no_secret_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(SecretError, match=r"it holds no secret|more than 16384 bytes: name a file that holds a secret"):
        read_secret(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="nothing: No such file"):
        read_secret(tmp_path / "nothing")


def test_a_secret_that_others_can_read_is_worth_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    assert exposure(file) == ""
    file.chmod(0o644)
    assert "chmod 600" in exposure(file)
    assert exposure(tmp_path / "nothing") == ""


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "secret"
    os.mkfifo(pipe)
    with pytest.raises(SecretError, match="it is no regular file"):
        read_secret(pipe)


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

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.run_folder.memory_folder import MemoryFolder
from holdfast_cli.run_folder.sweep import MARKER

FIRST, SECOND, THIRD = (16 * digit for digit in "123")

HOLDER = """
import pathlib, sys, time
from holdfast_cli.run_folder.memory_folder import MemoryFolder
folder = MemoryFolder(pathlib.Path(sys.argv[1]), "killed", sys.argv[2])
(folder.path / "slot").write_bytes(b"state")
print("held", flush=True)
time.sleep(600)
"""


def names(shm: Path) -> set[str]:
    return {path.name for path in shm.iterdir()}


def test_the_next_start_removes_the_folder_of_a_killed_run_and_none_of_a_living_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), FIRST]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        second = MemoryFolder(tmp_path, "other", SECOND)
        killed = tmp_path / f"holdfast-{os.geteuid()}-killed-{FIRST}"
        assert (killed / "slot").read_bytes() == b"state"
        holder.kill()
        holder.wait()
    third = MemoryFolder(tmp_path, "other", THIRD)
    assert names(tmp_path) == {second.path.name, third.path.name}
    second.release()
    third.release()


def test_a_folder_stays_while_a_rank_of_its_run_lives(tmp_path: Path) -> None:
    first = MemoryFolder(tmp_path, "orphaned", FIRST)
    first.release()
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: FIRST}) as rank:
        second = MemoryFolder(tmp_path, "other", SECOND)
        assert names(tmp_path) == {first.path.name, second.path.name}
        rank.kill()
    second.release()
    MemoryFolder(tmp_path, "other", THIRD).release()
    assert names(tmp_path) == {f"holdfast-{os.geteuid()}-other-{THIRD}"}


def test_what_is_no_folder_of_a_run_of_this_user_stays(tmp_path: Path) -> None:
    user = os.geteuid()
    others = {
        f"holdfast-{user}-run@node-{FIRST}",  # of an agent that no run supervises
        f"holdfast-{user + 1}-run-{FIRST}",
        f"holdfast-{user}-run-{FIRST}.tmp",
        f"holdfast-{user}-run",
        "torch_shm",
    }
    for name in others:
        (tmp_path / name).mkdir()
    link, file = (tmp_path / f"holdfast-{user}-{name}-{FIRST}" for name in ("link", "file"))
    link.symlink_to(tmp_path / "torch_shm")
    file.touch()
    own = MemoryFolder(tmp_path, "run", SECOND)
    assert names(tmp_path) == {*others, link.name, file.name, own.path.name}
    own.release()


def test_a_place_that_cannot_be_used_is_an_error_of_the_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"--shm-directory .*: No such file or directory: name a mem"):
        MemoryFolder(tmp_path / "missing", "run", FIRST)

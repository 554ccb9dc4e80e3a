import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboards.watch_folder import OWNER, PREFIX, remove_leftovers

LEAVE = "import os; from dashboards.watch_folder import watch_folder as it; a = it(); a.__enter__(); os._exit(0)"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A folder whose watch was killed."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", LEAVE], env=environment, timeout=60, check=True)
    (folder,) = tmp_path.iterdir()
    return folder


def changed(folder: Path, **values: Any) -> None:
    path = folder / OWNER
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_folder_whose_watch_was_killed_is_removed_with_all_that_is_in_it(left: Path) -> None:
    (left / "prometheus" / "data").mkdir(parents=True)
    remove_leftovers(left.parent)
    assert list(left.parent.iterdir()) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / OWNER).unlink(),
        lambda folder: (folder / OWNER).write_text("{"),
        lambda folder: (folder / OWNER).write_text("[]"),
        lambda folder: changed(folder, host="elsewhere"),
        lambda folder: changed(folder, pid_namespace=1),
        lambda folder: changed(folder, pid=None),
        lambda folder: folder.chmod(0o755),
        lambda folder: folder.rename(folder.with_name("of-somebody-else")),
    ],
)
def test_a_folder_of_which_it_is_not_certain_stays(left: Path, spoil: Callable[[Path], object]) -> None:
    spoil(left)
    remove_leftovers(left.parent)
    assert len(list(left.parent.iterdir())) == 1


def test_a_link_stays_with_what_it_leads_to(left: Path, tmp_path: Path) -> None:
    elsewhere = left.rename(tmp_path / "elsewhere")
    left.symlink_to(elsewhere)
    remove_leftovers(tmp_path)
    assert left.is_symlink()
    assert (elsewhere / OWNER).exists()


def test_a_folder_stays_while_its_watch_or_what_that_has_started_lives(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WATCH_FOLDER", str(left))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        remove_leftovers(left.parent)
        assert left.exists()
        child.communicate(b"\n", timeout=60)
    remove_leftovers(left.parent)
    assert not left.exists()


def test_the_folder_of_a_watch_that_lives_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = LEAVE.replace("os._exit(0)", "print(flush=True); input()")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()
        remove_leftovers(tmp_path)
        assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1
        watch.communicate(b"\n", timeout=60)

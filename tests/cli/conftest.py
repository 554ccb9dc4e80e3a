import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast_base.run_processes import ProcessIdentity, identify
from holdfast_cli.local_run import command_lines
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.main import app
from holdfast_cli.run_folder.record import RunRecord
from tests.support.snapshots import snapshots

__all__ = ["snapshots"]

FAKES = (sys.executable, str(Path(__file__).parents[1] / "support" / "fakes.py"))


def holdfast(*arguments: object, columns: int = 80, **others: Any) -> Result:
    """Call the command in this process. ``others``: of ``CliRunner.invoke``."""
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [str(word) for word in arguments], **others)


def fake_command(*arguments: str) -> list[str]:
    """Return the argv of a ``holdfast`` whose daemon and agent are fakes."""
    code = "import sys; from holdfast_cli.local_run import command_lines; from holdfast_cli.main import app; "
    code += "command_lines.HOLDFAST = (sys.executable, sys.argv.pop(1)); app()"
    return [sys.executable, "-c", code, FAKES[1], *arguments]


def checkpoint(*arguments: object) -> Result:
    """Call ``holdfast checkpoint`` in a wide terminal."""
    return holdfast("checkpoint", *arguments, columns=400)


def identity_of(pid: int) -> ProcessIdentity:
    """Return the identity of a process that runs."""
    found = identify(pid)
    assert found is not None
    return found


def run_record(directory: Path, **changes: Any) -> RunRecord:
    """Return the record of a run in ``directory``. By default no process and no other folder belongs to it."""
    places = ("runtime_directory", "shm_directory", "checkpoint_directory", "control", "store_url")
    fields: dict[str, Any] = {"run": "run", "instance": "i", "pid": 1, "start_ticks": 1, "node": "local"}
    fields |= {**dict.fromkeys(places, ""), "directory": str(directory), "created_unix_s": 1.0}
    return RunRecord(**{**fields, **changes})


@pytest.fixture
def short_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for the sockets of runs. The paths of pytest's own directories are too long for them."""
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="hf", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory


@pytest.fixture
def fake_components(monkeypatch: pytest.MonkeyPatch, short_directory: Path) -> Iterator[None]:
    monkeypatch.setattr(command_lines, "HOLDFAST", FAKES)
    yield
    assert list(short_directory.iterdir()) == [], "sockets were left behind"
    short_directory.rmdir()


@pytest.fixture
def options(tmp_path: Path, fake_components: None) -> Callable[..., LocalRunOptions]:
    memory = tmp_path / "shm"
    memory.mkdir()

    def build(**changes: Any) -> LocalRunOptions:
        settings: dict[str, Any] = {
            "run": "testing",
            "command": ("python", "train.py"),
            "directory": tmp_path / "runs",
            "shm_directory": memory,
        }
        return LocalRunOptions(**{**settings, **changes})

    return build

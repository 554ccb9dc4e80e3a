import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_cli.local_run import command_lines
from holdfast_cli.local_run.options import LocalRunOptions
from tests.support.coroutines import PATIENCE_S

FAKES = (sys.executable, str(Path(__file__).parents[1] / "support" / "fakes.py"))

WaitFor = Callable[[Callable[[], Any], str], Any]


@pytest.fixture
def wait_for() -> WaitFor:
    def wait(condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.01)
        return value

    return wait


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

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

TEXT = "The quick brown fox jumps over the lazy dog, and then it does so again and again. "


class RunRanks(Protocol):
    def __call__(self, case: str, *, ranks: int = 1, **config: dict[str, Any]) -> str:
        """Run a case of forked_ranks.py in a new world; return what its ranks printed."""


@pytest.fixture(scope="session")
def warm_parent() -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("forked_ranks.py")
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=10)


@pytest.fixture
def run_ranks(warm_parent: subprocess.Popen[str], tmp_path: Path, text_folder: Path) -> RunRanks:
    def run(case: str, *, ranks: int = 1, **config: dict[str, Any]) -> str:
        data = {"source": str(text_folder), "cache_directory": str(tmp_path / "cache"), **config.pop("data", {})}
        request = {"case": case, "ranks": ranks, "folder": str(tmp_path), "config": {**config, "data": data}}
        assert warm_parent.stdin is not None
        assert warm_parent.stdout is not None
        warm_parent.stdin.write(json.dumps(request) + "\n")
        warm_parent.stdin.flush()
        reply = json.loads(warm_parent.stdout.readline())
        assert reply["ok"], reply["output"]
        return str(reply["output"])

    return run


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Sixty files of text, each different, some of them in the validation part."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(60):
        (folder / f"chapter-{number}.txt").write_text(f"{number}: {TEXT[number:]}" * 20)
    return folder

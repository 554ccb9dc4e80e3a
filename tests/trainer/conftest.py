import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.tiers import expect_system_marker
from tests.trainer.layouts import Layout
from tests.trainer.world_of_one import world_of_one

TEXT = "The quick brown fox jumps over the lazy dog, and then it does so again and again. "


class RunRanks(Protocol):
    def __call__(self, case: str, *, ranks: int = 1, **config: dict[str, Any]) -> str:
        """Run a case of forked_ranks.py in a new world; return what its ranks printed. Samples have 16 tokens."""


class CheckLayouts(Protocol):
    def __call__(self, layouts: Sequence[Layout]) -> None:
        """Compare layouts of equally many ranks with one plain process; name those that fail by their flags."""


@pytest.fixture(scope="session")
def warm_parent() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.trainer.forked_ranks"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process is a whole world."""
    with world_of_one():
        yield


@pytest.fixture
def run_ranks(
    request: pytest.FixtureRequest, warm_parent: subprocess.Popen[str], tmp_path: Path, text_folder: Path
) -> RunRanks:
    expect_system_marker(request)

    def run(case: str, *, ranks: int = 1, **config: dict[str, Any]) -> str:
        data = {"source": str(text_folder), "cache_directory": str(tmp_path / "cache"), "sequence": 16}
        config = {"train": {"global_batch": 8}, **config, "data": data | config.get("data", {})}
        request = {"case": case, "ranks": ranks, "folder": str(tmp_path), "configs": [config]}
        reply = ask(warm_parent, request)
        assert reply["ok"], reply["output"]
        return str(reply["output"])

    return run


@pytest.fixture
def check_layouts(request: pytest.FixtureRequest, warm_parent: subprocess.Popen[str], tmp_path: Path) -> CheckLayouts:
    expect_system_marker(request)

    def check(layouts: Sequence[Layout]) -> None:
        failures: list[str] = []
        waiting = list(layouts)
        while waiting:
            configs = [layout.config for layout in waiting]
            request = {"case": "sweep", "ranks": waiting[0].ranks, "folder": str(tmp_path), "configs": configs}
            reply = ask(warm_parent, request)
            if reply["ok"]:
                break
            passed = reply["output"].splitlines().count("passed")
            failures.append(f"{waiting[passed].flags}\n{reply['output']}")
            waiting = waiting[passed + 1 :]
        assert not failures, "\n".join(failures)

    return check


def ask(parent: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any]:
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.write(json.dumps(request) + "\n")
    parent.stdin.flush()
    reply: dict[str, Any] = json.loads(parent.stdout.readline())
    return reply


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Sixty files of text, each different, some of them in the validation part."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(60):
        (folder / f"chapter-{number}.txt").write_text(f"{number}: {TEXT[number:]}" * 20)
    return folder

"""A rank that forks while its session is open: nothing on stderr, nothing changed for its children, one session."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.trainer_hooks.conftest import run_python
from tests.trainer_hooks.test_observed import environment_of

VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
SKIPPED = "skipping fork() handlers"
FORKS = 4
SCRIPT = f"""
    import os, subprocess, sys, time
    {{first}}
    before = os.environ.copy()
    import holdfast_hooks
    assert os.environ.copy() == before
    import torch
    import torch.utils.data

    def child(end):
        pid = os.fork()
        if pid == 0:
            end()
        assert os.waitpid(pid, 0)[1] == 0
        program = [sys.executable, "-c", "import os; print(os.environ.get('{VARIABLE}'))"]
        print("child has", subprocess.check_output(program, text=True).strip())

    with holdfast_hooks.attach() as hooks:
        for step in hooks.steps(until=400):
            if step == 0:
                while not hooks._sidecar._reporter._link.ready:  # else no thread is inside gRPC
                    time.sleep(0.01)
            if step < {FORKS}:
                child(sys.exit if step % 2 else lambda: os._exit(0))
            if step == {FORKS}:
                loader = torch.utils.data.DataLoader(range(64), batch_size=2, num_workers=2)
                print("samples", sum(int(batch.sum()) for batch in loader))
                break
            time.sleep(0.02)
    print("handlers", sys.modules["grpc"]._cython.cygrpc.is_fork_support_enabled())
"""


@pytest.fixture(autouse=True)
def _no_value_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def rank_that_forks(folder: Path, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a rank whose script begins with ``first``."""
    return run_python(SCRIPT.format(first=first), **environment_of(folder), **environment)


def test_a_rank_that_forks_prints_nothing_and_keeps_its_one_session(agent: Any, folder: Path) -> None:
    rank = rank_that_forks(folder)
    assert (rank.returncode, rank.stderr) == (0, "")
    assert rank.stdout.splitlines() == ["child has None"] * FORKS + [f"samples {sum(range(64))}", "handlers False"]
    assert agent.wait_for_the_end() == list(range(FORKS))  # the loop is left in the next one
    assert len(agent.of("hello")) == 1


def test_a_script_that_has_imported_grpc_before_keeps_its_fork_handlers(agent: Any, folder: Path) -> None:
    rank = rank_that_forks(folder, first="import grpc")
    assert (rank.returncode, rank.stdout.splitlines()[0]) == (0, "child has None")
    assert SKIPPED in rank.stderr
    agent.wait_for_the_end()
    assert len(agent.of("hello")) == 1


def test_a_value_that_the_user_has_set_stays(agent: Any, folder: Path) -> None:
    rank = rank_that_forks(folder, **{VARIABLE: "1"})
    said = rank.stdout.splitlines()
    assert (rank.returncode, said[0], said[-1]) == (0, "child has 1", "handlers True")

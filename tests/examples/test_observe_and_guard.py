"""The examples of ``holdfast observe`` over two nodes and of ``holdfast guard`` run as their heads say."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast_cli.local_run.redis_server import find_server
from holdfast_proto.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[2]
NODES = ROOT / "examples" / "observe_nodes.sh"


def run(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command from the root of the repository, with the programs of this Python first on the PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def free_ports(number: int) -> list[str]:
    """Return ports of this machine that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [str(one.getsockname()[1]) for one in sockets]


def test_the_head_of_the_shell_script_says_how_to_start_it_and_the_list_names_it() -> None:
    assert "#     examples/observe_nodes.sh 200\n" in NODES.read_text()
    assert "(observe_nodes.sh)" in (ROOT / "examples" / "README.md").read_text()
    assert os.access(NODES, os.X_OK)


@pytest.mark.system
def test_two_nodes_watch_one_run_to_its_end(tmp_path: Path) -> None:
    redis_port, meeting_port = free_ports(2)
    places = {"REDIS_PORT": redis_port, "MEETING_PORT": meeting_port, "RUNS": str(tmp_path)}
    done = run(str(NODES), "40", REDIS_SERVER=str(find_server()), **places)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("nodes finished, generation 1") == 2  # each node says so
    assert {path.name for path in tmp_path.glob("nodes@*")} == {"nodes@a", "nodes@b"}


@pytest.mark.system
def test_the_guard_finds_the_stale_checkpoint_of_its_example(tmp_path: Path) -> None:
    saved = run(sys.executable, "examples/guard.py", str(tmp_path))
    assert saved.returncode == 0, saved.stderr
    guard = run("holdfast", "guard", str(tmp_path), "--once", "--quiet-s", "1")
    assert guard.returncode == ExitCode.FAILED, guard.stderr
    first, second, third, last = guard.stdout.splitlines()
    assert (first.startswith("step-10: good"), second.startswith("step-20: good")) == (True, True)
    assert third.startswith("step-30: BAD: stale: its model weights are byte-identical to those of step-20")
    assert last == "the newest complete checkpoint step-30 is bad: the newest good one is step-20"

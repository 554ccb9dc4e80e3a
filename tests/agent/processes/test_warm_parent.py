import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_base import processes
from holdfast_proto.v1 import warm_parent_pb2 as pb
from tests.support.coroutines import PATIENCE_S, wait_until
from tests.support.warm_parents import COMMAND, RUN, Agent, WarmParent, warm_parent, writers_in

pytestmark = pytest.mark.system

PRINTS_FACTS = """
import json, os, sys
facts = {"argv": sys.argv, "marker": os.environ["MARKER"], "path": sys.path[0], "session": os.getsid(0)}
facts |= {"warm": "warm_module" in sys.modules, "late": "late_module" in sys.modules, "name": __name__}
facts |= {"input": sys.stdin.read(), "comm": open("/proc/self/comm").read().strip()}
facts |= {"title": open("/proc/self/cmdline").read(), "variables": b"PATH=" in open("/proc/self/environ", "rb").read()}
print(json.dumps(facts))
print("and a word on stderr", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def parent() -> Iterator[WarmParent]:
    """A warm parent for all tests that leave it as they found it."""
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        folder = Path(name)
        (folder / "warm_module.py").write_text("")
        (folder / "scripts").mkdir()
        (folder / "scripts" / "facts.py").write_text(PRINTS_FACTS)
        (folder / "package").mkdir()
        (folder / "package" / "__init__.py").write_text("")
        (folder / "package" / "facts.py").write_text(PRINTS_FACTS)
        with warm_parent(folder, "warm_module") as parent:
            yield parent


@pytest.fixture
def agent(parent: WarmParent) -> Iterator[Agent]:
    with parent.agent() as agent:
        yield agent


@pytest.fixture
def log(parent: WarmParent, request: pytest.FixtureRequest) -> Path:
    return parent.folder / f"{request.node.name}.log"


def facts(log: Path) -> dict[str, object]:
    first, second = log.read_text().splitlines()
    assert second == "and a word on stderr"
    found: dict[str, object] = json.loads(first)
    return found


def test_ready_holds_the_pid_and_that_there_are_no_children(parent: WarmParent, agent: Agent) -> None:
    assert agent.ready.pid == parent.process.pid
    assert list(agent.ready.children) == []
    assert agent.ready.import_s > 0
    assert parent.socket.stat().st_mode & 0o777 == 0o600


def test_a_script_runs_warm_with_its_arguments_environment_and_log(parent: WarmParent, agent: Agent, log: Path) -> None:
    script = parent.folder / "scripts" / "facts.py"
    pid = agent.fork(["python", str(script), "--steps", "5"], log, rank=7, MARKER="blue")
    assert os.waitstatus_to_exitcode(agent.end_of(pid, rank=7)) == 3
    assert facts(log) == {
        "argv": [str(script), "--steps", "5"],
        "marker": "blue",
        "path": str(script.parent),
        "session": pid,
        "warm": True,
        "late": False,
        "name": "__main__",
        "input": "",
        "comm": "rank 7",
        "title": f"holdfast: rank 7 of {RUN}: python {script} --steps 5\0",
        "variables": True,
    }
    assert log.stat().st_mode & 0o777 == 0o600


def test_it_is_recognisable_in_ps(parent: WarmParent) -> None:
    title = f"holdfast: warm parent of {RUN} at {parent.socket}\0"
    shown = Path(f"/proc/{parent.process.pid}/cmdline")
    wait_until(lambda: shown.read_text() == title, f"it is called {title}")  # its socket is there before its title
    assert Path(f"/proc/{parent.process.pid}/comm").read_text() == "holdfast-warm\n"


def test_a_module_runs_warm_from_the_working_directory(parent: WarmParent, agent: Agent, log: Path) -> None:
    assert agent.code_of(["python", "-m", "package.facts", "--steps", "5"], log, MARKER="green") == 3
    found = facts(log)
    assert found["argv"] == [str(parent.folder / "package" / "facts.py"), "--steps", "5"]
    assert (found["path"], found["marker"]) == (str(parent.folder), "green")
    assert (found["warm"], found["name"]) == (True, "__main__")


PYTHON_LINE = ["python", "-c", "import os; print(os.environ['MARKER']); exit(7)"]


@pytest.mark.parametrize("command", [["sh", "-c", 'echo "$MARKER"; exit 7'], PYTHON_LINE])
def test_any_other_program_is_executed(agent: Agent, log: Path, command: list[str]) -> None:
    assert agent.code_of(command, log, MARKER="red") == 7
    assert log.read_text() == "red\n"


def test_a_log_is_appended_to(agent: Agent, log: Path) -> None:
    for word in ("first", "second"):
        assert agent.code_of(["echo", word], log) == 0
    assert log.read_text() == "first\nsecond\n"


def test_a_rank_that_raises_leaves_its_traceback_and_code_1(parent: WarmParent, agent: Agent, log: Path) -> None:
    script = parent.folder / "raises.py"
    script.write_text("raise ValueError('bad sample')\n")
    assert agent.code_of(["python", str(script)], log) == 1
    assert log.read_text().endswith("ValueError: bad sample\n")


def test_a_program_that_does_not_exist_is_named_in_the_log(agent: Agent, log: Path) -> None:
    assert agent.code_of(["no-such-program", "--flag"], log) == 1
    assert "No such file or directory" in log.read_text()


def test_an_interrupt_from_the_terminal_ends_ranks_alone(parent: WarmParent, agent: Agent, log: Path) -> None:
    script = parent.folder / "waits.py"
    script.write_text("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    pid = agent.fork(["python", str(script)], log)
    wait_until(lambda: log.exists() and "waits" in log.read_text(), "the rank waits")
    parent.process.send_signal(signal.SIGINT)
    os.kill(pid, signal.SIGINT)
    agent.end_of(pid)
    assert "KeyboardInterrupt" in log.read_text()
    assert agent.code_of(["true"], log) == 0


def test_modules_asked_for_later_are_there_for_later_forks(parent: WarmParent, agent: Agent, log: Path) -> None:
    (parent.folder / "late_module.py").write_text("")
    agent.ask(pb.ParentRequest(preload=pb.Preload(modules=["late_module", "no_such_module"])))
    agent.code_of(["python", str(parent.folder / "scripts" / "facts.py")], log, MARKER="")
    assert facts(log)["late"] is True


def test_the_next_agent_gets_the_children_and_the_exits_that_the_last_one_missed(parent: WarmParent, log: Path) -> None:
    gate = parent.folder / "gate"
    os.mkfifo(gate)
    with parent.agent() as first:
        stays = first.fork(["sleep", "600"], log, rank=0)
        goes = first.fork(["sh", "-c", f"read word < {gate}; exit 5"], log, rank=1)
    gate.write_text("go\n")
    wait_until(lambda: not Path(f"/proc/{goes}").exists(), "the warm parent has reaped the rank")
    with parent.agent() as second:
        assert [(child.generation, child.rank, child.pid) for child in second.ready.children] == [(1, 0, stays)]
        assert os.waitstatus_to_exitcode(second.end_of(goes, rank=1)) == 5
        os.kill(stays, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(second.end_of(stays, rank=0)) == -signal.SIGKILL
    with parent.agent() as third:
        assert list(third.ready.children) == []
        # The second agent may have died before it read this.
        assert os.waitstatus_to_exitcode(third.end_of(goes, rank=1)) == 5
        assert third.code_of(["true"], log) == 0


def test_of_two_agents_the_newer_one_is_served(parent: WarmParent, log: Path) -> None:
    with parent.agent() as older, parent.agent() as newer:
        with pytest.raises(EOFError):
            while True:
                older.receive()
        assert newer.code_of(["true"], log) == 0


def test_a_second_one_for_the_same_socket_ends_immediately(parent: WarmParent, log: Path) -> None:
    program = [sys.executable, "-m", "holdfast_agent.processes.warm_parent"]
    command = [*program, str(parent.socket), RUN, "no_such_module", "--", *COMMAND]
    second = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert second.returncode == 1
    assert second.stderr == f"warm parent: another one serves {parent.socket}\n"
    with parent.agent() as agent:
        assert agent.ready.pid == parent.process.pid
        assert agent.code_of(["true"], log) == 0


def test_its_ranks_do_not_keep_another_one_from_taking_its_place(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    log = folder / "rank.log"
    with warm_parent(folder) as first, first.agent() as agent:
        stays = agent.fork(["python", str(script)], log)
        # Until the rank closes the socket that it inherited, it could be taken for its parent.
        wait_until(lambda: log.exists() and "waits" in log.read_text(), "the rank waits")
    with warm_parent(folder) as second, second.agent() as agent:
        assert agent.code_of(["true"], log) == 0
        assert processes.is_alive(stays, processes.start_ticks(stays))
    processes.kill_session(stays, processes.start_ticks(stays))


def test_a_socket_that_was_removed_is_created_again(parent: WarmParent, log: Path) -> None:
    parent.socket.unlink()
    parent.process.send_signal(signal.SIGCHLD)  # otherwise it would check after some seconds
    with parent.agent() as agent:
        assert agent.code_of(["true"], log) == 0


def test_leave_ends_it_when_its_last_child_has_ended(folder: Path) -> None:
    with warm_parent(folder) as parent, parent.agent() as agent:
        pid = agent.fork(["sleep", "600"], folder / "rank.log")
        agent.ask(pb.ParentRequest(leave=pb.Leave()))
        assert agent.code_of(["true"], folder / "rank.log") == 0  # it is still there for its agent
        os.kill(pid, signal.SIGTERM)
        agent.end_of(pid)
        assert parent.process.wait(30) == 0
        with pytest.raises(EOFError):
            agent.receive()


def test_a_module_that_cannot_be_imported_is_logged_and_stops_nothing(folder: Path) -> None:
    (folder / "broken_module.py").write_text("raise RuntimeError('no licence')\n")
    (folder / "warm_module.py").write_text("")
    (folder / "facts.py").write_text(PRINTS_FACTS)
    with warm_parent(folder, "no_such_module", "broken_module", "warm_module") as parent, parent.agent() as agent:
        assert agent.code_of(["python", str(folder / "facts.py")], folder / "rank.log", MARKER="") == 3
        assert facts(folder / "rank.log")["warm"] is True
    log = parent.log.read_text()
    assert "cannot import no_such_module ahead" in log
    assert "cannot import broken_module ahead: RuntimeError('no licence')" in log


def test_a_request_that_makes_no_sense_is_left_out_and_the_next_one_obeyed(
    parent: WarmParent, agent: Agent, log: Path
) -> None:
    agent._connection.send(b"\xff\xff\xff")
    agent.ask(pb.ParentRequest(host_store=pb.HostStore(generation=1, address="no address")))
    assert agent.answer().store_ready.port == 0
    assert agent.code_of(["true"], log) == 0
    assert "a message makes no sense" in parent.log.read_text()


def test_a_rank_that_a_test_leaves_behind_is_found_whatever_program_it_is(folder: Path) -> None:
    with warm_parent(folder) as parent, parent.agent() as agent:
        pid = agent.fork(["sleep", "600"], folder / "rank.log")
        wait_until(lambda: set(writers_in(str(folder))) == {parent.process.pid, pid}, "both write to files here")
        processes.kill_session(pid, processes.start_ticks(pid))
        agent.end_of(pid)
    assert writers_in(str(folder)) == []

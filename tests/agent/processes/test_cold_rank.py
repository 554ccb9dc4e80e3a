"""Ranks of a warm parent that has imported a module which trains."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast_agent.processes import cold_rank
from holdfast_proto.v1 import warm_parent_pb2 as pb
from tests.support.coroutines import wait_until
from tests.support.warm_parents import RUN, warm_parent

# A device that needs no hardware: with one, a backward pass starts threads of the engine, as on a GPU.
TRAINS = """
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
_setup_privateuseone_for_python_backend("tested")
torch.ones(2, requires_grad=True).sum().backward()
"""
RANK = """
import json, os, signal, sys
was_warm = "train" in sys.modules or "torch" in sys.modules
import torch
torch.ones(2, requires_grad=True).sum().backward()
facts = {"warm": was_warm, "argv": sys.argv, "marker": os.environ["MARKER"], "session": os.getsid(0)}
facts |= {"comm": open("/proc/self/comm").read().strip(), "title": open("/proc/self/cmdline").read()}
facts |= {"interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler, "name": __name__}
print(json.dumps(facts))
sys.exit(3)
"""
LINE = "warm parent: the import of train ran a backward pass, so ranks start in new interpreters"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAINS)
        (folder / "rank.py").write_text(RANK)
        yield folder


def facts(log: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(log.read_text())
    return found


@pytest.mark.system
def test_after_an_import_that_trains_ranks_start_in_new_interpreters_and_can_train(folder: Path) -> None:
    log = folder / "rank.log"
    with warm_parent(folder, "torch", "train") as parent, parent.agent() as agent:
        pid = agent.fork(["python", "rank.py", "--api-key", "s5"], log, rank=7, MARKER="blue")
        assert os.waitstatus_to_exitcode(agent.end_of(pid, rank=7)) == 3, log.read_text()
        assert facts(log) == {
            "warm": False,
            "argv": ["rank.py", "--api-key", "s5"],
            "marker": "blue",
            "session": pid,
            "comm": "rank 7",
            "title": f"holdfast: rank 7 of {RUN}: python rank.py --api-key [hidden]\0",
            "interrupts": True,
            "name": "__main__",
        }
        log.unlink()
        assert agent.code_of(["python", "-m", "rank"], log, MARKER="") == 3
        assert (facts(log)["warm"], facts(log)["argv"]) == (False, [str(folder / "rank.py")])
    [line] = parent.log.read_text().splitlines()
    assert line.startswith(LINE)


@pytest.mark.system
def test_so_do_they_after_a_later_import_while_earlier_ranks_stay(folder: Path) -> None:
    earlier, later = folder / "earlier.log", folder / "later.log"
    with warm_parent(folder, "torch") as parent, parent.agent() as agent:
        stays = agent.fork(["sleep", "600"], earlier)
        for _ in range(2):
            agent.ask(pb.ParentRequest(preload=pb.Preload(modules=["train", "no_such_module"])))
        assert agent.code_of(["python", "rank.py"], later, MARKER="") == 3
        assert facts(later)["warm"] is False
        os.kill(stays, signal.SIGKILL)
        assert os.WTERMSIG(agent.end_of(stays)) == signal.SIGKILL
    [line] = parent.log.read_text().splitlines()
    assert line.startswith(LINE)


@pytest.mark.system
def test_an_interrupt_ends_a_rank_that_started_cold(folder: Path) -> None:
    log = folder / "rank.log"
    (folder / "waits.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(600)\n")
    with warm_parent(folder, "train") as parent, parent.agent() as agent:
        pid = agent.fork(["python", "waits.py"], log)
        wait_until(lambda: log.exists() and "waits" in log.read_text(), "the rank waits")
        os.kill(pid, signal.SIGINT)
        agent.end_of(pid)
    assert "KeyboardInterrupt" in log.read_text()


@pytest.mark.parametrize(("initialised", "reason"), [(False, ""), (True, "used a GPU")])
def test_a_context_of_a_gpu_forbids_forks(initialised: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: initialised)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    assert cold_rank.why_no_fork() == reason

"""Processes that a launcher has started in the place of ranks."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast_agent.processes.rank import Rank
from holdfast_agent.processes.replacements import has_replacement, parent_of
from holdfast_base import processes
from holdfast_proto.v1 import store_pb2 as store

RANK = [sys.executable, "-S", "-c", "import time; print('ready', flush=True); time.sleep(600)"]


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[bytes]"]]:
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


def start(started: list["subprocess.Popen[bytes]"], number: int) -> Rank:
    """Start a process in the place of a rank, as a launcher would: this process is the launcher."""
    process = subprocess.Popen(RANK, env={"RANK": str(number)}, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None and process.stdout.readline()
    rank = Rank(number, 1, number, process.pid, processes.start_ticks(process.pid), life=store.LIFE_RUNNING)
    rank.parent = parent_of(process.pid)
    return rank


def test_a_rank_that_ended_is_replaced_by_a_new_child_of_its_parent_with_its_number(
    started: list["subprocess.Popen[bytes]"],
) -> None:
    ranks = [start(started, 0), start(started, 1)]
    assert ranks[0].parent is not None and ranks[0].parent[0] == os.getpid()
    started[1].kill()
    started[1].wait()
    ranks[1].exit = store.RankExit(signal=9)
    ranks[1].life = store.LIFE_EXITED
    start(started, 2)  # another one
    assert not has_replacement(ranks)
    start(started, 1)
    assert has_replacement(ranks)


def test_while_all_ranks_live_nothing_is_a_replacement(started: list["subprocess.Popen[bytes]"]) -> None:
    ranks = [start(started, 0)]
    start(started, 0)
    assert not has_replacement(ranks)

"""An agent ends a rank of another launcher only if it is the process that is meant, and if it still hangs."""

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.commands.checks import Known, refusal
from holdfast_agent.commands.command_runner import CommandRunner
from holdfast_agent.observer import Observer
from holdfast_agent.processes.rank import Rank
from holdfast_agent.processes.training_thread import ThreadStatus
from holdfast_base.processes import is_alive, process_state, start_ticks
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import wait_until
from tests.support.nodes import RUN, make_node

GENERATION = 2


class Desk:
    """A leader's place, which gives commands to a node whose only rank another launcher has started."""

    def __init__(self, folder: Path, victim: "subprocess.Popen[bytes]") -> None:
        self.victim, self.pid, self.ticks = victim, victim.pid, start_ticks(victim.pid)
        self.node = make_node(folder, command=())
        self.node.spec.on_hang = store.HANG_ACTION_ABORT
        self.supervisor = self.node.supervisor()
        self._ids = count()

    def admit(self, *, said_ticks: int) -> Rank:
        """Let the process attach as a rank that has stalled."""
        hello = session.Hello(run=RUN, generation=GENERATION, world_size=1, pid=self.pid, start_ticks=said_ticks)
        rank = Observer(self.node, self.supervisor).admit(hello)
        assert rank is not None
        rank.stalled_s = 70.0
        return rank

    async def end(self, *, generation: int = GENERATION, **changes: Any) -> list[str]:
        """Command the end of the rank; return why it is refused."""
        asked = {"rank": 0, "pid": self.pid, "start_ticks": self.ticks, "stalled_s": 60.0, "node": "a", **changes}
        end_ranks = store.EndRanks(ranks=[store.EndedRank(**asked)])
        before = len(self.node.link.emitted)
        number = next(self._ids)
        command = store.NodeCommand(
            id=f"id-{number}", fence=9, generation=generation, instance="i", end_ranks=end_ranks
        )
        await self.commands.handle(command, number, "1-0")
        return [event.command_refused.reason for event in self.node.link.emitted[before:]]

    @cached_property
    def commands(self) -> CommandRunner:
        """The runner of its commands. It needs the test's loop."""
        return self.node.commands(self.supervisor)

    @property
    def lives(self) -> bool:
        return is_alive(self.pid, self.ticks)


@pytest.fixture
def desk(folder: Path) -> Iterator[Desk]:
    with subprocess.Popen(["sleep", "600"]) as victim:
        try:
            yield Desk(folder, victim)
        finally:
            victim.kill()


async def test_a_rank_is_ended_even_if_it_is_stopped_and_a_repeated_command_does_no_harm(desk: Desk) -> None:
    rank = desk.admit(said_ticks=desk.ticks)
    assert desk.node.state(ready=False).ranks[0].start_ticks == desk.ticks
    os.kill(desk.pid, signal.SIGSTOP)
    wait_until(lambda: process_state(desk.pid) == "T", "the rank is stopped")
    desk.node.pass_time(1.0)
    assert await desk.end() == []
    for state in ("R", "S", "Z"):  # of a process that dies: it has not moved, or the abort would be taken back
        rank.look(state, ThreadStatus())
        assert rank.stalled_s > 60.0
        rank.process_state = "T"
    assert desk.victim.wait() == -signal.SIGKILL
    assert await desk.end() == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rank": 1}, "rank 1 is not ended: it is not on this node"),
        ({"pid": 1}, "and not 1"),
        ({"start_ticks": 5}, "and not"),
        ({"stalled_s": 71.0}, "it has moved since the command was given"),
        ({"generation": GENERATION + 1}, "it is about generation 3, this node is at 2"),
        ({"generation": GENERATION - 1}, "it is about generation 1, this node is at 2"),
        ({"pid": 0}, "pid is missing"),
        ({"start_ticks": 0}, "start_ticks is missing"),
        ({"stalled_s": float("nan")}, "stalled_s is nan"),
    ],
)
async def test_another_process_generation_or_state_is_left_alone(
    desk: Desk, changes: dict[str, Any], reason: str
) -> None:
    desk.admit(said_ticks=desk.ticks)
    (said,) = await desk.end(**changes)
    assert reason in said
    assert desk.lives


@pytest.mark.parametrize("said", [0, 77])
async def test_a_process_that_the_rank_does_not_see_itself_in_is_left_alone(desk: Desk, said: int) -> None:
    desk.admit(said_ticks=said)  # 0: older hooks. 77: the pid is one of another container
    assert desk.node.state(ready=False).ranks[0].start_ticks == 0
    (reason,) = await desk.end()
    assert "it has not said itself which process it is" in reason
    assert desk.lives


@pytest.mark.parametrize(
    ("spec", "observes", "reason"),
    [
        (store.RunSpec(instance="i"), True, "started without --on-hang abort"),
        (store.RunSpec(instance="i", on_hang=store.HANG_ACTION_ABORT, command=["true"]), False, "stopped together"),
    ],
)
def test_only_a_run_that_asks_for_it_has_ranks_ended(spec: store.RunSpec, observes: bool, reason: str) -> None:
    asked = store.EndRanks(ranks=[store.EndedRank(rank=0, pid=5, start_ticks=6, node="a")])
    command = store.NodeCommand(id="a", generation=1, instance="i", end_ranks=asked)
    assert reason in refusal(command, spec, Known(0, 0, 1, observes), number=1, now_unix_s=1.8e9)

"""Ranks with real hooks and a real agent's session, in a real hang."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_agent import session as sessions
from holdfast_agent.agent import TICK_S
from holdfast_agent.movement.tree_watch import TreeWatch
from holdfast_base import processes
from holdfast_proto.rank_context import RankContext
from tests.support.coroutines import end, until
from tests.support.nodes import RUN, RecordedNode, begin, make_node

pytestmark = pytest.mark.system

HANGS_AT = 5

STILL_S = 6.0
"""Seconds beyond the sleep of any background thread: a data loader's worker checks for its parent every 5 s."""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def _two_ranks(node: RecordedNode) -> Iterator[list[int]]:
    port = _free_port()
    ranks = []
    try:
        for rank in range(2):
            box = node.options.black_box(1, rank)
            box.parent.mkdir(parents=True, exist_ok=True)
            agent = f"unix:{node.options.session_socket}"
            context = RankContext(run=RUN, generation=1, agent=agent, black_box=str(box)).to_environment()
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment = {**os.environ, **context, **place, "PYTHONPATH": os.pathsep.join(sys.path)}
            script = Path(__file__).parents[2] / "support" / "hung_rank.py"
            command = [sys.executable, str(script), str(HANGS_AT)]
            ranks.append(subprocess.Popen(command, env=environment, start_new_session=True))
        yield [rank.pid for rank in ranks]
    finally:
        for process in ranks:
            processes.kill_session(process.pid, processes.start_ticks(process.pid))
            process.wait()


async def test_ranks_that_hang_are_still_whatever_their_background_threads_do(folder: Path) -> None:
    node = make_node(folder)
    begin(node, 1, {})
    server = await sessions.serve(node.messages, node.errors, node.options.session_socket, node.admit)
    with _two_ranks(node) as pids:
        begin(node, 1, dict(enumerate(pids)))
        tasks = [asyncio.create_task(_pass_time(node)), asyncio.create_task(TreeWatch(node).run())]
        await until(lambda: all(rank.progress.step == HANGS_AT for rank in node.ranks.values()), "they hang")
        reports = node.reports_total
        await until(lambda: all(rank.tree.still_s >= STILL_S for rank in node.ranks.values()), "they are still")
        assert node.reports_total > reports + 2 * 4 * STILL_S, "the reporter has worked all the time"
        assert node.tree_look_failures_total == 0
        assert [rank.tree.workers for rank in node.ranks.values()] == [1, 1]
        assert not any(rank.tree.traced for rank in node.ranks.values())
        await end(*tasks)
    await server.stop(grace=None)


async def _pass_time(node: RecordedNode) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        node.pass_time(TICK_S)

"""An agent's clock and its view of two processes, printed each time it looks: ``paused_agent.py FOLDER PID PID``."""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from holdfast_agent.agent import Agent
from holdfast_agent.rank_supervisor import RankSupervisor
from holdfast_agent.reports.store_link import StoreLink
from holdfast_proto.v1 import store_pb2 as store
from tests.support.nodes import begin, make_node


class Printed:
    """A stand-in for the link to the store."""

    up = True

    async def publish_state(self, state: store.NodeState) -> None:
        """Print the seconds for which the ranks have stalled, and the state of their processes."""
        print(json.dumps([(rank.stalled_s, rank.process_state) for rank in state.ranks]), flush=True)


async def watch(folder: Path, pids: list[int]) -> None:
    node = make_node(folder)
    begin(node, 1, dict(enumerate(pids)))
    supervisor = SimpleNamespace(
        exits=SimpleNamespace(note_cgroups=lambda: None),
        record=SimpleNamespace(save_if_due=lambda: None),
        parent=SimpleNamespace(is_ready=True),
    )
    link = cast(StoreLink, Printed())
    await Agent(node, link, node.checkpoints, cast(RankSupervisor, supervisor)).tick()


if __name__ == "__main__":
    asyncio.run(watch(Path(sys.argv[1]), [int(pid) for pid in sys.argv[2:]]))

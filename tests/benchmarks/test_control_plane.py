"""The simulated nodes of benchmarks/control_plane.py, and which figure it says breaks next. No processes run here."""

import asyncio

from benchmarks.control_plane import next_to_break
from benchmarks.control_plane_ranks.agent_writes import AgentWrites
from benchmarks.control_plane_ranks.training_nodes import TrainingNodes
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import ChannelProgress, GroupProgress
from tests.simulation.programs import Layout

LAYOUT = Layout(data=4, tensor=2, pipeline=2, experts=2)


def states(nodes: TrainingNodes, trained_s: float, now_s: float) -> dict[int, store.RankState]:
    found = (nodes.state_at(name, trained_s, now_s) for name in nodes.nodes)
    return {rank.rank: rank for node in found for rank in node.ranks}


def done(call: GroupProgress | ChannelProgress) -> int:
    return call.completed


def open_calls(state: store.RankState) -> int:
    return sum(group.enqueued - group.completed for group in state.progress.groups)


def test_counters_of_a_healthy_rank_only_grow() -> None:
    nodes = TrainingNodes(LAYOUT, 2.0, seed=1)
    seen: list[list[int]] = []
    for tenth in range(50):
        rank = states(nodes, tenth / 10, tenth / 10)[3]
        seen.append([*map(done, rank.progress.groups), *map(done, rank.progress.channels)])
    assert all(list(counter) == sorted(counter) for counter in zip(*seen, strict=True))
    assert seen[0] != seen[-1]


def test_all_ranks_wait_for_the_one_that_hangs() -> None:
    nodes = TrainingNodes(LAYOUT, 2.0, seed=1)
    nodes.hang(4.0)
    hung = states(nodes, 4.0, 10.0)
    assert [rank for rank, state in hung.items() if state.thread_state == "R"] == [nodes.culprit]
    assert all(state.stalled_s >= 6.0 for state in hung.values())
    assert any(open_calls(state) for rank, state in hung.items() if rank != nodes.culprit)


def test_agents_write_their_states_and_events_under_the_keys_of_the_run() -> None:
    async def written() -> tuple[bytes, bytes]:
        nodes = TrainingNodes(LAYOUT, 2.0, seed=1)
        writes = AgentWrites(store.RunSpec(run="scale"), nodes.nodes)
        published = await writes.of_states([nodes.state_at("node00000", 1.0, 1.0)])
        sent = await writes.of_events({"node00001": nodes.summary("node00001", 0)})
        await writes.close()
        return published, sent

    published, sent = asyncio.run(written())
    assert keys.node("scale", "node00000").encode() in published
    assert keys.node("scale", "node00001").encode() not in published
    assert keys.events("scale").encode() in sent


def test_the_figure_that_is_furthest_over_breaks_next() -> None:
    row = {"ranks": 10_000, "in_mb_per_s": 10.0, "tick_cpu_s": 0.5, "rss_mb": 200.0, "verdict_after_s": None}
    assert next_to_break(row) == ("tick_cpu_s", 5.0)

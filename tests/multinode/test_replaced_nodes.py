"""The state of a node that was replaced no longer counts."""

import dataclasses
from collections.abc import Mapping

from holdfast_core import coordinator
from holdfast_core.model import CoreState, Observation, Send
from holdfast_daemon.control.status import status_of
from holdfast_proto.v1 import store_pb2 as store

SPEC = store.RunSpec(run="r", nodes=2, ranks_per_node=1, mode=store.MODE_ACT, instance="i")
NOW = 1_000_000.0


def node(name: str, rank: int, *, generation: int, snapshots: list[int], stopped: bool = False) -> store.NodeState:
    life = store.LIFE_EXITED if stopped else store.LIFE_RUNNING
    held = store.RankState(rank=rank, life=life, snapshots=snapshots, steps_done=1)
    return store.NodeState(
        node=name, instance="i", ready=True, generation=generation, stopped=stopped, ranks=[held], checkpoints=[4]
    )


def with_a_replaced_node(*, stopped: bool) -> Mapping[str, store.NodeState]:
    """Return states of nodes. ``c`` had rank 1 before ``b``. It comes last, so that it would win if it counted."""
    return {
        "a": node("a", 0, generation=2, snapshots=[8, 9], stopped=stopped),
        "b": node("b", 1, generation=2, snapshots=[8, 9], stopped=stopped),
        "c": node("c", 1, generation=1, snapshots=[5], stopped=True),
    }


def state(phase: "store.RunPhase") -> CoreState:
    record = store.CoordinatorState(run="r", phase=phase, generation=2, nodes=["a", "b"], newest_step=9)
    return coordinator.begin(SPEC, record)


def test_the_run_continues_from_the_snapshots_of_the_nodes_that_it_is_on() -> None:
    observation = Observation(nodes=with_a_replaced_node(stopped=True))
    _, actions = coordinator.step(state(store.RUN_PHASE_STOPPING), NOW, observation)
    starts = {action.node: action.command.start for action in actions if isinstance(action, Send)}
    assert sorted(starts) == ["a", "b"]
    assert {(start.source, start.step) for start in starts.values()} == {(store.SOURCE_MEMORY, 9)}


def test_operators_see_each_rank_where_it_runs_now() -> None:
    seen = dataclasses.replace(state(store.RUN_PHASE_RUNNING), nodes=with_a_replaced_node(stopped=False))
    status = status_of(seen, NOW, store_up=True)
    assert {rank.rank: rank.node for rank in status.ranks} == {0: "a", 1: "b"}
    assert status.newest_snapshot == 9


def test_a_leader_that_finds_the_store_emptied_takes_over_the_nodes_of_the_newest_generation() -> None:
    observation = Observation(nodes=with_a_replaced_node(stopped=False))
    after, _ = coordinator.step(coordinator.begin(SPEC), NOW, observation)
    assert after.record.phase == store.RUN_PHASE_RUNNING
    assert (after.record.generation, list(after.record.nodes)) == (2, ["a", "b"])

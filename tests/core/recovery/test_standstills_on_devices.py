"""The table of signs for runs whose calls run on devices: what restarts them, and what a healthy run may look like."""

from collections.abc import Mapping

import pytest

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import restarted_after_s, running
from tests.support.core_world import World
from tests.support.recorder_documents import Document

WORLD = {"0": (0, 1, 2, 3)}
CERTAIN_S, LIKELY_S, TIME_ALONE_S, PAUSE_S = 1.0, 10.0, 60.0, 180.0
"""Rows of the table with the preset fast."""


def on_devices(documents: Mapping[int, Document]) -> World:
    """Return a run whose ranks stand still with these recorders, and spin as one does that waits for its device."""
    world = running()
    world.moving = set(range(4))
    for number in range(4):
        rank = world.rank(number)
        rank.device, rank.moved = f"cuda:{number}", "cpu"
        rank.recorders.add(source=common.RECORDER_SOURCE_NCCL, backend="nccl", full_dumps=True)
    while not world.sent("gather_evidence"):
        world.tick()
    suspicion = world.sent("gather_evidence")[0].gather_evidence.suspicion
    captured = store.EvidenceCaptured(suspicion=suspicion)
    for number, document in documents.items():
        captured.recorders.add(rank=number, dump=from_document(document.document()))
    world.events.append(store.Event(node="node0", evidence_captured=captured))
    return world


def waits_for(culprit: int) -> dict[int, Document]:
    """Return recorders of which all but one show a pending call."""
    documents = {rank: Document(WORLD) for rank in range(4)}
    for rank, document in documents.items():
        for _ in range(12):
            document.call()
        if rank != culprit:
            document.pending()
    return documents


@pytest.mark.parametrize("activity", [common.ACTIVITY_PIPE, common.ACTIVITY_FILE_LOCK, common.ACTIVITY_DISK])
def test_a_rank_that_waits_off_its_device_and_in_which_nothing_moves_is_likely(activity: "common.Activity") -> None:
    world = on_devices(waits_for(1))
    world.moving -= {1}
    world.rank(1).moved = ""
    world.rank(1).blocked_on.activity = activity
    assert restarted_after_s(world) == pytest.approx(LIKELY_S, abs=1.0)
    assert list(world.incidents[0].verdict.culprits) == [1]


@pytest.mark.safety
@pytest.mark.parametrize("how", ["spins", "sleeps", "compiles"])
def test_a_rank_that_may_wait_for_its_own_device_has_the_time_of_a_step(how: str) -> None:
    """A long kernel, a compilation or the capture of a graph looks like that, and is healthy."""
    world = on_devices(waits_for(1))
    rank = world.rank(1)
    if how != "spins":
        world.moving -= {1}
        rank.moved = ""
        rank.blocked_on.activity = common.ACTIVITY_LOCK if how == "sleeps" else common.ACTIVITY_COMPILER
    assert restarted_after_s(world) == pytest.approx(TIME_ALONE_S, abs=1.0)


def test_a_rank_that_alone_holds_a_call_is_likely_although_it_spins() -> None:
    documents = {rank: Document(WORLD).call().call().pending() for rank in range(4)}
    documents[2] = Document(WORLD).call().pending()
    world = on_devices(documents)
    assert restarted_after_s(world) == pytest.approx(LIKELY_S, abs=1.0)
    assert list(world.incidents[0].verdict.culprits) == [2]
    lines = [action.what for action in world.incidents[0].actions]
    assert "restart: rank 2 alone holds a call that is over on all others" in lines


@pytest.mark.parametrize(("state", "after_s"), [("started", LIKELY_S), ("scheduled", TIME_ALONE_S)])
def test_a_call_that_all_have_made_is_likely_only_if_all_devices_have_reached_it(state: str, after_s: float) -> None:
    world = on_devices({rank: Document(WORLD).call().call(state=state) for rank in range(4)})
    assert restarted_after_s(world) == pytest.approx(after_s, abs=1.0)


def test_different_calls_have_the_time_of_a_step_as_nccl_may_end_them_all_the_same() -> None:
    documents = {rank: Document(WORLD).call().pending() for rank in range(4)}
    documents[3] = Document(WORLD).call().pending("all_gather")
    assert restarted_after_s(on_devices(documents)) == pytest.approx(TIME_ALONE_S, abs=1.0)


def test_a_rank_that_waits_for_data_of_a_worker_that_was_killed_is_certain() -> None:
    world = on_devices(waits_for(1))
    rank = world.rank(1)
    world.moving -= {1}
    rank.moved, rank.progress.phase = "", common.PHASE_DATA
    rank.lost_worker.pid, rank.lost_worker.code, rank.blocked_on.activity = 77, -9, common.ACTIVITY_PIPE
    assert restarted_after_s(world) <= CERTAIN_S + 1.0
    assert "after its worker (pid 77) was killed by SIGKILL" in world.incidents[0].verdict.message


def test_a_rank_that_waits_for_data_has_the_time_of_a_pause() -> None:
    world = on_devices(waits_for(1))
    world.moving -= {1}
    world.rank(1).moved, world.rank(1).progress.phase = "", common.PHASE_DATA
    assert restarted_after_s(world) == pytest.approx(PAUSE_S, abs=1.0)
    assert world.incidents[0].verdict.kind == store.VERDICT_KIND_DATA_STALL


def test_a_stopped_rank_is_certain() -> None:
    world = on_devices(waits_for(1))
    world.rank(1).process_state = "T"
    assert restarted_after_s(world) <= CERTAIN_S + 1.0


def test_a_rank_that_has_ended_is_restarted_at_once() -> None:
    world = on_devices(waits_for(1))
    world.end(1, signal=9)
    assert restarted_after_s(world) <= 10.0

"""The state that an agent publishes of a rank."""

import os
import threading
from pathlib import Path

import pytest

from holdfast_agent.processes.rank import DYING_PATIENCE_S, Rank
from holdfast_proto import black_box
from holdfast_proto.black_box import BlackBoxWriter, NamedCall
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import (
    OWN_TIME_SOURCE_EVENTS,
    OWN_TIME_SOURCE_NONE,
    OWN_TIME_SOURCE_UNSPECIFIED,
    PHASE_DATA,
    PHASE_OPTIMIZER,
    PendingCall,
    Progress,
)
from tests.support.coroutines import wait_until
from tests.support.nodes import RUN, begin, make_node

NOW_UNIX_S = 1.8e9


@pytest.fixture
def rank() -> Rank:
    return make_rank()


def make_rank() -> Rank:
    return Rank(rank=5, generation=1, local_rank=0, pid=os.getpid(), start_ticks=0)


async def test_each_look_at_a_node_shows_what_the_training_threads_do(folder: Path) -> None:
    node = make_node(folder)
    begin(node, 1, {0: os.getpid()})
    node.pass_time(0.1)
    (reported,) = node.state(ready=True).ranks
    assert reported.busy_s > 0
    assert reported.thread_state == "R"


def test_a_node_shows_the_size_of_its_world_and_of_a_replica_as_a_rank_has_said_it(folder: Path) -> None:
    node = make_node(folder)
    assert node.state(ready=True).world_size == 0
    begin(node, 1, {0: os.getpid()})
    assert node.admit(session.Hello(run=RUN, generation=1, world_size=1, replica_ranks=4)) is not None
    state = node.state(ready=True)
    assert (state.world_size, [rank.replica_ranks for rank in state.ranks]) == (1, [4])


def test_a_node_looks_at_the_thread_that_a_rank_names_and_keeps_its_time_when_it_has_ended(folder: Path) -> None:
    asleep = threading.Event()
    thread = threading.Thread(target=asleep.wait)
    thread.start()
    node = make_node(folder)
    begin(node, 1, {0: os.getpid()})
    assert node.admit(session.Hello(run=RUN, generation=1, world_size=1, training_thread=thread.native_id)) is not None

    def seen() -> store.RankState:
        node.pass_time(0.1)
        (reported,) = node.state(ready=True).ranks
        return reported

    try:
        alive = wait_until(lambda: reported if (reported := seen()).thread_state == "S" else None, "it sleeps")
    finally:
        asleep.set()
        thread.join()
    ended = wait_until(lambda: reported if (reported := seen()).thread_state == "" else None, "it has ended")
    assert ended.busy_s >= alive.busy_s > 0.0


def test_phases_and_memory_are_published_as_the_rank_reports_them(rank: Rank) -> None:
    memory = session.MemoryStatus(allocated_bytes=10, reserved_bytes=20, limit_bytes=30)
    phases: list[dict[int, float]] = [{PHASE_DATA: 0.5}, {PHASE_DATA: 0.25, PHASE_OPTIMIZER: 1.0}]
    steps = [session.StepRecord(step=step, phase_s=phase_s) for step, phase_s in enumerate(phases)]
    rank.apply(session.Report(steps=steps, memory=memory), NOW_UNIX_S)
    reported = rank.state([])
    assert dict(reported.phase_s) == {PHASE_DATA: 0.75, PHASE_OPTIMIZER: 1.0}
    assert reported.memory == memory


def test_its_sleep_and_the_own_time_of_its_gpu_with_its_steps_never_fall(rank: Rank) -> None:
    for own_s, steps in ((1.5, 3), (0.5, 1), (2.0, 4)):
        rank.apply(session.Report(own_wait_s=own_s, device_own_s=own_s, device_steps=steps), NOW_UNIX_S)
        state = rank.state([])
        assert (state.device_own_s, state.device_steps) == max((1.5, 3), (own_s, steps))
        assert state.own_wait_s == max(1.5, own_s)


def test_how_its_own_time_is_measured_is_what_its_newest_report_says(rank: Rank) -> None:
    assert rank.state([]).own_time_source == OWN_TIME_SOURCE_UNSPECIFIED
    for source, reason in ((OWN_TIME_SOURCE_NONE, "it sends messages"), (OWN_TIME_SOURCE_EVENTS, "")):
        rank.apply(session.Report(own_time_source=source, own_time_reason=reason), NOW_UNIX_S)
        state = rank.state([])
        assert (state.own_time_source, state.own_time_reason) == (source, reason)


def test_its_exit_tells_the_end_of_its_loop_as_its_last_report_said(rank: Rank) -> None:
    for steps_until in (0, 1000, 0):
        rank.apply(session.Report(steps_until=steps_until), NOW_UNIX_S)
    rank.finish(store.RankExit(code=0), None)
    assert rank.exit is not None
    assert rank.exit.steps_until == 1000


def test_it_tells_the_end_of_its_loop_while_it_trains(rank: Rank) -> None:
    assert rank.state([]).planned_steps == 0
    for planned_steps in (1000, 0, 2000):
        rank.apply(session.Report(planned_steps=planned_steps), NOW_UNIX_S)
    assert rank.state([]).planned_steps == 2000
    rank.finish(store.RankExit(signal=9), None)
    assert rank.exit is not None
    assert rank.exit.steps_until == 0  # it did not end its loop: nothing may take it for one that did


def test_a_rank_that_has_reported_its_exception_does_not_stall_while_it_ends_but_not_forever(rank: Rank) -> None:
    rank.pass_time(0.5)
    rank.apply(session.Report(last_words="ValueError: bad sample"), NOW_UNIX_S)
    rank.pass_time(DYING_PATIENCE_S)
    assert rank.state([]).stalled_s == 0.0
    rank.pass_time(1.0)
    assert rank.state([]).stalled_s == 1.0


def test_a_rank_that_attaches_again_is_back_and_one_that_only_reconnects_has_left(rank: Rank) -> None:
    rank.welcome(session.Hello(attachment=1))
    rank.apply(session.Report(steps=[session.StepRecord(step=7)], finished=True), NOW_UNIX_S)
    rank.welcome(session.Hello(attachment=1))
    assert rank.has_left_training
    rank.welcome(session.Hello(attachment=2))
    assert not rank.has_left_training
    rank.apply(session.Report(steps=[session.StepRecord(step=0)]), NOW_UNIX_S)
    assert (rank.newest_step, rank.steps_done) == (0, 2)


def test_pending_calls_are_reported_until_a_report_is_without_them(rank: Rank) -> None:
    rank.apply(session.Report(pending=[PendingCall(group="0", seq=7, op="gloo:all_reduce", sizes="[[4]]")]), NOW_UNIX_S)
    assert list(rank.state([]).pending) == [PendingCall(rank=5, group="0", seq=7, op="gloo:all_reduce", sizes="[[4]]")]
    rank.apply(session.Report(), NOW_UNIX_S)
    assert list(rank.state([]).pending) == []


def test_the_calls_that_a_rank_ended_in_are_read_from_its_black_box(rank: Rank, folder: Path) -> None:
    path = folder / "box"
    box = BlackBoxWriter(path, run="run", generation=1, rank=5, world_size=8)
    box.pending([NamedCall("0", 7, "gloo:all_reduce", "[[4, 8]]", "['Float']")])
    rank.finish(store.RankExit(signal=9), black_box.read(path))
    reported = rank.state([])
    expected = PendingCall(rank=5, group="0", seq=7, op="gloo:all_reduce", sizes="[[4, 8]]", dtypes="['Float']")
    assert list(reported.pending) == [expected]
    assert reported.thread_state == ""
    assert reported.thread_syscall == -1


def test_a_change_of_progress_ends_a_stall_and_a_report_without_one_does_not(rank: Rank) -> None:
    for step, now_unix_s in ((3, NOW_UNIX_S), (3, NOW_UNIX_S + 1.0)):
        rank.apply(session.Report(progress=Progress(step=step)), now_unix_s)
        rank.pass_time(1.0)
    assert (rank.stalled_s, rank.silent_s, rank.last_progress_unix_s) == (2.0, 1.0, NOW_UNIX_S)
    rank.apply(session.Report(progress=Progress(step=4)), NOW_UNIX_S + 2.0)
    assert (rank.stalled_s, rank.last_progress_unix_s) == (0.0, NOW_UNIX_S + 2.0)


def test_only_a_rank_without_session_and_black_box_has_never_attached(folder: Path) -> None:
    silent, spoke, wrote = make_rank(), make_rank(), make_rank()
    spoke.welcome(session.Hello())
    BlackBoxWriter(folder / "box", run="run", generation=1, rank=5, world_size=8)
    ends = [store.RankExit(code=1) for _ in range(3)]
    silent.finish(ends[0], None)
    spoke.finish(ends[1], None)
    wrote.finish(ends[2], black_box.read(folder / "box"))
    assert [ended.never_attached for ended in ends] == [True, False, False]


async def test_a_rank_of_a_world_that_another_launcher_made_is_published_with_its_size(folder: Path) -> None:
    node = make_node(folder)
    begin(node, 1, {number: os.getpid() for number in range(3)})
    node.ranks[2].adopted_from_step = 7  # it has trained under an earlier agent
    for number, world_size in enumerate((5, 3, 5)):
        assert node.admit(session.Hello(run=RUN, generation=1, rank=number, world_size=world_size)) is not None
    assert [rank.launched_world_size for rank in node.state(ready=True).ranks] == [5, 0, 0]

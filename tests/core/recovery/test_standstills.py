"""How the core handles a run that stands still: it reports soon and restarts late."""

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast_core.detection import view_of
from holdfast_core.model import StopRequest
from holdfast_core.recovery import signs
from holdfast_core.recovery.restart_patience import UNCERTAIN_RESTARTS, RestartPatience, Sign
from holdfast_core.recovery.standstills import KNOWN_PAUSES, has_given_up
from holdfast_core.tick import Tick
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import edited_record, end_ranks, hung, restart, restarted_after_s, running, set_ranks
from tests.support.core_world import World


def states(world: World) -> list[str]:
    names = (store.IncidentState.Name(incident.state) for incident in world.incidents)
    return [name.removeprefix("INCIDENT_STATE_").lower() for name in names]


def kill(world: World, number: int) -> None:
    world.end(number, signal=9)
    restart(world)


def test_a_rank_that_nothing_moves_in_is_restarted_after_the_likely_patience() -> None:
    world = hung()
    assert restarted_after_s(world) == pytest.approx(10.0, abs=0.5)
    (incident,) = world.incidents
    assert incident.state == store.INCIDENT_STATE_OPEN
    assert any("restart: nothing has moved in the processes of rank 1" in action.what for action in incident.actions)


@pytest.mark.safety
@pytest.mark.parametrize(
    ("signs_s", "after_s"),
    [
        ([2**i - 1 for i in range(1, 8)], 60.0),  # retries with growing pauses: only time alone counts
        ([3**i - 1 for i in range(1, 5)], 60.0),
        (range(100), 60.0),  # looks for a file once a second
        ([2], 10.0),  # the last thing that it did
        ([1, 2, 3, 4, 5], 20.0),  # then it hangs: four times as long as it lived
    ],
)
def test_a_rank_that_wakes_now_and_then_is_not_restarted_before_its_next_sign_of_life_is_overdue(
    signs_s: Iterable[float], after_s: float
) -> None:
    world = hung()
    rank = world.rank(1)
    while world.phase == "running":
        seen_s = [at_s for at_s in signs_s if at_s <= rank.stalled_s]
        rank.sign_of_life, rank.sign_age_s = ("wakes", rank.stalled_s - seen_s[-1]) if seen_s else ("", 0.0)
        world.tick(seconds=0.2)
    assert rank.stalled_s == pytest.approx(after_s, abs=1.0)
    [line] = [action.what for action in world.incidents[0].actions if action.what.startswith("restart: ")]
    assert ", and it woke " in line


@pytest.mark.safety
def test_of_ranks_that_all_pause_the_first_to_go_on_waits_for_the_others_before_one_is_restarted() -> None:
    world = running()
    world.train()
    while world.rank(1).stalled_s < 30.0:
        world.tick(seconds=0.2)
    world.hang(culprit=1)
    set_ranks(world, 0, 2, 3, stalled_s=0.0)
    assert restarted_after_s(world) == pytest.approx(10.0, abs=0.5)


@pytest.mark.parametrize("how", ["moves", "traced", "unknown"])
def test_a_rank_that_moves_is_traced_or_was_not_looked_at_has_the_time_of_a_step(how: str) -> None:
    world = hung()
    if how == "traced":
        world.rank(1).traced, world.rank(1).process_state = True, "t"
    else:
        world.moving = {1} if how == "moves" else set(range(4))
    assert restarted_after_s(world) == pytest.approx(60.0, abs=0.5)


@pytest.mark.parametrize("how", ["moves", "traced", "evaluates"])
def test_a_still_rank_that_may_wait_for_one_that_is_busy_has_the_time_of_that_one(how: str) -> None:
    world = hung()
    group = world.rank(3).progress.groups[0]  # it is in no call: rank 1 may wait for it in new_group()
    group.enqueued = group.completed
    world.moving = {3} if how == "moves" else set()
    world.rank(3).traced = how == "traced"
    if how == "evaluates":
        world.rank(3).progress.phase = common.PHASE_EVAL
    assert restarted_after_s(world) == pytest.approx(180.0 if how == "evaluates" else 60.0, abs=0.5)


def test_a_still_rank_is_restarted_in_time_if_all_others_wait_or_are_still() -> None:
    world = hung()
    group = world.rank(3).progress.groups[0]
    group.enqueued = group.completed
    assert restarted_after_s(world) == pytest.approx(10.0, abs=0.5)


@pytest.mark.parametrize(
    "phase", [common.PHASE_EVAL, common.PHASE_CHECKPOINT, common.PHASE_IDLE, common.PHASE_INIT, common.PHASE_DATA]
)
def test_a_rank_in_a_pause_has_the_time_of_a_pause_though_nothing_moves(phase: "common.Phase") -> None:
    world = hung()
    world.rank(1).progress.phase = phase
    assert restarted_after_s(world) == pytest.approx(180.0, abs=0.5)


@pytest.mark.parametrize(
    ("phase", "waits_for", "moves", "after_s"),
    [
        (common.PHASE_DATA, common.ACTIVITY_PIPE, False, 1.0),
        (common.PHASE_DATA, common.ACTIVITY_PIPE, True, 180.0),  # something may still bring the data
        (common.PHASE_DATA, common.ACTIVITY_DISK, False, 180.0),  # it reads itself: the child was another one's
        (common.PHASE_DATA, common.ACTIVITY_SOCKET, False, 180.0),
        (common.PHASE_FORWARD_BACKWARD, common.ACTIVITY_PIPE, False, 10.0),  # it waits for no data
    ],
)
def test_a_rank_that_waits_for_data_of_a_worker_that_was_killed_is_certain(
    phase: "common.Phase", waits_for: "common.Activity", moves: bool, after_s: float
) -> None:
    world = hung()
    rank = world.rank(1)
    rank.progress.phase, rank.lost_worker.pid, rank.lost_worker.code = phase, 77, -9
    rank.blocked_on.activity = waits_for
    world.moving = {1} if moves else set()
    assert restarted_after_s(world) == pytest.approx(after_s, abs=0.5)
    if after_s < 10.0:
        assert "gets no data" in world.incidents[0].verdict.message
        assert "after its worker (pid 77) was killed by SIGKILL" in world.incidents[0].verdict.message


def test_a_stopped_rank_is_restarted_immediately_unless_another_is_stopped_too() -> None:
    alone = hung()
    alone.rank(1).process_state = "T"
    assert restarted_after_s(alone) < 2.0
    two = hung()
    two.rank(1).process_state = two.rank(2).process_state = "T"
    assert restarted_after_s(two) == pytest.approx(10.0, abs=0.5)


def test_a_stopped_rank_in_an_evaluation_is_still_a_certain_sign() -> None:
    world = hung()
    world.rank(1).progress.phase = common.PHASE_EVAL
    world.rank(1).process_state = "T"
    assert restarted_after_s(world) <= 21.0  # the report deadline of a phase that is new to the run


def test_a_pause_of_all_ranks_is_no_incident_however_they_continue() -> None:
    world = running()
    set_ranks(world, process_state="T")
    world.stand(30.0)
    for number in (2, 0, 3, 1):
        world.rank(number).process_state = "S"
        world.rank(number).stalled_s = 0.0  # agents do so: see rank.py
        world.stand(0.6)
    world.train(2)
    assert (world.incidents, world.phase) == ([], "running")


def test_a_pause_of_all_ranks_that_does_not_end_is_reported_and_ended() -> None:
    world = running()
    set_ranks(world, process_state="T")
    assert restarted_after_s(world) == pytest.approx(60.0, abs=0.5)
    assert "are stopped" in world.incidents[0].verdict.message


def test_a_circle_of_calls_is_certain_only_while_none_of_its_ranks_moves() -> None:
    def circle() -> World:
        world = running()
        for number, (ahead, behind) in ((0, ("a", "b")), (1, ("b", "a"))):
            groups = world.rank(number).progress.groups
            del groups[:]
            groups.add(group=ahead, member_runs=[0, 1, 2], enqueued=5, completed=4)
            groups.add(group=behind, member_runs=[0, 1, 2], enqueued=4, completed=4)
        return world

    assert restarted_after_s(circle()) < 2.0
    moving = circle()
    moving.moving = {1}
    assert restarted_after_s(moving) == pytest.approx(60.0, abs=0.5)


def hang_at_start(world: World) -> None:
    """Let all ranks but rank 1 enter the second call of a generation, which has done no step."""
    for number in range(4):
        world.rank(number).progress.phase = common.PHASE_FORWARD_BACKWARD
        world._seq(world.rank(number), enqueued=1 if number == 1 else 2, completed=1)


def all_in_one_call(world: World) -> None:
    for number in range(4):
        group = world.rank(number).progress.groups[0]
        world._seq(world.rank(number), enqueued=group.completed + 1, completed=group.completed)


def test_a_call_that_does_not_complete_is_likely_only_while_no_data_moves() -> None:
    world = running()
    all_in_one_call(world)
    assert restarted_after_s(world) == pytest.approx(10.0, abs=0.5)
    slow = running()
    all_in_one_call(slow)
    slow.moving = {2}
    assert restarted_after_s(slow) == pytest.approx(60.0, abs=0.5)


def test_ranks_on_gpus_that_spin_in_a_call_count_as_waiting() -> None:
    world = running()
    all_in_one_call(world)
    world.moving = set(range(4))
    set_ranks(world, device="cuda:0", moved="cpu")
    assert restarted_after_s(world) == pytest.approx(10.0, abs=0.5)


def test_a_standstill_that_ends_is_resolved_and_costs_no_restart() -> None:
    world = hung(stood_s=5.0)
    assert states(world) == ["standstill"]
    world.train()
    world.tick()
    assert (states(world), world.phase) == (["resolved"], "running")
    assert not world.state.record.standstill_incident


def test_a_new_leader_resolves_the_standstill_of_the_one_before() -> None:
    world = hung(stood_s=5.0)
    world.lose_leader()
    world.stand(1.0)
    world.train(3)
    world.tick()
    assert states(world) == ["resolved"]


def test_newer_evidence_replaces_the_verdict_on_a_standstill_and_opens_no_second_incident() -> None:
    world = running()
    world.moving = set(range(4))
    world.stand(5.0)
    world.hang(culprit=2)
    world.stand(5.0)
    (incident,) = world.incidents
    assert (incident.verdict.kind, list(incident.verdict.culprits)) == (store.VERDICT_KIND_HUNG_COLLECTIVE, [2])
    assert (incident.superseded, incident.state) == (1, store.INCIDENT_STATE_STANDSTILL)
    assert any(action.what.startswith("newer evidence replaces this verdict: ") for action in incident.actions)


def test_that_nobody_is_known_to_be_missing_is_no_news_beside_a_rank_that_is_named() -> None:
    world = hung(2, stood_s=5.0)
    for number in range(4):  # the groups are gone from the reports for a moment: nobody is known to wait
        del world.rank(number).progress.groups[:]
    world.stand(5.0)
    (incident,) = world.incidents
    assert incident.verdict.kind == store.VERDICT_KIND_HUNG_COLLECTIVE
    assert not any("also seen" in action.what for action in incident.actions)


def test_ranks_that_pass_their_deadlines_later_join_the_incident() -> None:
    world = running()
    world.moving = {1, 2}
    world.hang(culprit=1)
    group = world.rank(0).progress.groups[0]
    world._seq(world.rank(2), enqueued=group.completed, completed=group.completed)
    world.rank(2).stalled_s = 0.0
    world.stand(5.0)
    [incident] = world.incidents
    assert sorted(incident.verdict.culprits) == [1, 2]
    joined = [action.what for action in incident.actions if action.what.startswith("more ranks stand still: ")]
    assert joined == [f"more ranks stand still: {incident.verdict.message}"]


def test_a_restart_for_another_cause_than_the_one_reported_first_names_that_cause() -> None:
    world = hung(moving={1}, stood_s=5.0)
    world.moving = set()
    group = world.rank(2).progress.groups[0]
    world._seq(world.rank(1), enqueued=group.enqueued, completed=group.completed)
    world._seq(world.rank(2), enqueued=group.completed, completed=group.completed)
    restarted_after_s(world)
    assert states(world) == ["open"]
    assert (list(world.incidents[0].verdict.culprits), world.incidents[0].superseded) == ([2], 1)


TIMED_OUT = "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 12000ms for recv operation to complete"


@pytest.mark.safety
def test_ranks_that_give_up_waiting_are_consequences_of_the_rank_that_hangs() -> None:
    world = hung(moving={1}, stood_s=5.0)
    end_ranks(world, 0, 2, 3, code=1, last_words=TIMED_OUT)
    world.until("starting")
    (incident,) = world.incidents
    assert (incident.verdict.kind, list(incident.verdict.culprits)) == (store.VERDICT_KIND_HUNG_COLLECTIVE, [1])
    assert [action.what for action in incident.actions if action.what.startswith("consequence: ranks 0, 2, 3")]
    assert not world.state.record.standstill_incident


def test_in_an_observed_run_they_are_a_line_of_the_incident_and_no_second_one() -> None:
    world = hung(stood_s=5.0, mode=store.MODE_OBSERVE)
    end_ranks(world, 0, 2, 3, code=1, last_words=TIMED_OUT)
    world.stand(3.0)
    world.end(1, signal=15)  # torchrun ends the rest
    world.stand(3.0)
    assert [list(incident.verdict.culprits) for incident in world.incidents] == [[1]]
    assert "moves again" not in str(world.incidents[0].actions)


@pytest.mark.parametrize(
    "how",
    [
        {"signal": 9, "out_of_memory": True},
        {"signal": 11},
        {"signal": 6, "last_words": "free(): invalid pointer"},
        {"code": 1, "last_words": 'Traceback\n  File "train.py", line 9, in main\nValueError: bad sample'},
    ],
)
def test_an_end_that_no_hang_brings_about_is_judged_anew(how: dict[str, Any]) -> None:
    world = hung(moving={1}, stood_s=5.0)
    world.end(2, **how)
    world.until("starting")
    assert list(world.incidents[-1].verdict.culprits) == [2]


def test_a_rank_that_ends_with_an_exception_is_said_to_be_dead_and_not_to_move_again() -> None:
    world = hung(moving={1}, stood_s=5.0)
    world.rank(1).dying, world.rank(1).stalled_s = True, 0.0  # it has sent its last words
    set_ranks(world, 0, 2, 3, stalled_s=0.0)
    world.stand(1.0)
    assert states(world) == ["standstill"]
    world.end(1, code=1, last_words='Traceback\n  File "train.py", line 9, in main\nConnectionError: reset')
    world.until("starting")
    assert "moves again" not in str(world.incidents[0].actions)
    assert list(world.incidents[-1].verdict.culprits) == [1]


def test_a_mismatch_on_devices_that_names_nobody_is_no_certain_sign() -> None:
    world = running()
    world.stand(5.0)
    world.moving = set(range(4))
    verdict = store.Verdict(kind=store.VERDICT_KIND_MISMATCHED_ORDER, device_call=store.DeviceCallDetail(what="differ"))
    patience = RestartPatience.of(world.state.spec, world.state.record)
    judged = signs.judge(view_of(Tick(world.state, world.now)), verdict, patience)
    assert (judged.is_due, judged.sign) == (False, Sign.NONE)


def test_a_death_ends_the_story_of_a_standstill() -> None:
    world = hung(stood_s=5.0)
    world.end(1, signal=9)
    world.until("starting")
    assert states(world) == ["resolved", "open"]
    assert world.incidents[0].actions[-1].what.startswith("another verdict explains it: rank 1 ")
    assert not world.state.record.standstill_incident


def test_a_pause_of_all_ranks_is_known_when_some_come_to_it_a_little_later() -> None:
    world = running()
    world.stand(5.0)
    assert states(world) == ["standstill"]
    world.train()
    world.hang(culprit=1)
    world.stand(5.0)
    world.train()
    world.tick()
    assert states(world) == ["resolved"]


def test_what_a_run_remembers_of_pauses_is_bounded() -> None:
    world = running()
    with edited_record(world) as record:
        record.known_pauses.extend(store.KnownPause(kind=f"k{i}", longest_s=1.0) for i in range(KNOWN_PAUSES))
    world.hang(culprit=1)
    world.stand(5.0)
    world.train()
    world.tick()
    kept = [pause.kind for pause in world.state.record.known_pauses]
    assert len(kept) == KNOWN_PAUSES
    assert kept[-1].startswith("hung_collective in forward_backward")


def test_after_three_restarts_that_did_not_help_the_run_is_left_as_it_is() -> None:
    world = running(restart_patience=0.05)
    world.moving = {1}
    for expected in range(UNCERTAIN_RESTARTS):
        assert len(world.sent("stop")) == expected
        set_ranks(world, steps_done=1)
        hang_at_start(world)
        while len(world.sent("stop")) == expected:
            world.tick()
        world.until("starting")
    hang_at_start(world)
    world.stand(150.0)
    assert len(world.sent("stop")) == UNCERTAIN_RESTARTS
    assert world.phase != "failed"
    assert has_given_up(world.state.record)
    assert any("not restarted again" in action.what for action in world.incidents[-1].actions)
    # An exit is a certain sign: it is still answered.
    world.end(1, signal=9)
    world.until("stopping")


def test_uncertain_restarts_never_fail_a_run_and_exits_do() -> None:
    world = running()
    assert world.spec.restarts_without_progress == 2
    kill(world, 0)
    kill(world, 3)
    hang_at_start(world)
    restart(world)
    assert world.state.record.restarts_without_progress == 1
    kill(world, 0)
    world.end(3, signal=9)
    world.until("failed")
    assert "restarts in a row brought no new step" in world.state.record.outcome


def test_the_last_line_repeats_what_began_it_and_not_only_what_came_last() -> None:
    world = running()
    world.end(2, code=1, last_words="Traceback\nValueError: bad sample")
    restart(world)
    for number in (0, 3):
        kill(world, number)
    world.end(1, signal=9)
    world.until("failed")
    line = world.state.record.outcome
    assert line.startswith("2 restarts in a row brought no new step. It began with this: rank 2 raised ValueError")
    assert "The last start failed with this: rank 1 was killed by SIGKILL" in line


def test_a_rank_that_fails_before_its_first_step_says_nothing_about_its_data() -> None:
    world = World()
    for phase in ("stopping", "stopping", "failed"):
        world.until("starting")
        world.rank(0).progress.step = -1
        world.end(0, code=1, last_words="Traceback\nValueError: no such key")
        world.until(phase)
    assert world.state.record.outcome.startswith(
        "rank 0 fails before the first step each time, 3 times in a row: rank 0 raised ValueError: no such key"
    )


def test_a_rank_that_fails_at_one_step_each_time_is_named_in_the_last_line() -> None:
    world = running()
    for _ in range(3):
        world.end(2, code=1, last_words="Traceback\nValueError: bad sample")
        restart(world)
    world.end(2, code=1, last_words="Traceback\nValueError: bad sample")
    world.until("failed")
    outcome = world.state.record.outcome
    assert outcome.startswith("rank 2 fails at step")
    assert "4 times in a row" in outcome
    assert "ValueError: bad sample" in outcome


def test_in_observe_mode_nothing_is_ever_restarted() -> None:
    world = hung(mode=store.MODE_OBSERVE)
    world.rank(1).process_state = "T"
    world.stand(300.0)
    assert (states(world), world.sent("stop")) == (["standstill"], [])


def test_a_healthy_stay_in_a_phase_is_remembered_over_a_change_of_leader() -> None:
    world = running()
    world.spent_s = {int(common.PHASE_EVAL): 120.0}
    world.train()
    world.tick()
    world.lose_leader()
    assert world.state.record.longest_phase_s[common.PHASE_EVAL] == 120.0
    world.spent_s = {int(common.PHASE_EVAL): 125.0}
    world.train()
    world.tick()
    assert world.state.record.longest_phase_s[common.PHASE_EVAL] == 120.0  # not longer by a tenth: not written again


def test_a_standstill_that_is_left_as_it_is_is_reported_though_it_is_a_known_pause() -> None:
    world = running(restart_patience=0.05)
    with edited_record(world) as record:
        record.uncertain_restarts, record.step_at_restart = UNCERTAIN_RESTARTS, record.newest_step
        record.known_pauses.add(kind="hung_collective in forward_backward, unspecified", longest_s=1000.0)
    world.hang(culprit=1)
    world.stand(19.0)
    assert states(world) == ["standstill"]
    assert has_given_up(world.state.record)


def test_a_rank_that_has_left_training_while_others_wait_for_it_is_reported_and_not_restarted() -> None:
    world = hung()
    world.rank(1).left_training = True
    world.rank(1).progress.phase = common.PHASE_IDLE
    world.stand(300.0)
    (incident,) = world.incidents
    assert incident.verdict.message.startswith(
        "rank 1 has left training after step 5 with at least 1 call fewer in group 0"
    )
    assert (states(world), world.phase) == (["standstill"], "running")


def test_a_run_that_is_ended_while_it_stands_still_leaves_no_open_incident() -> None:
    world = hung(stood_s=5.0)
    world.tick(StopRequest())
    assert (states(world), world.phase) == (["noted"], "failed")


def test_a_generation_that_cannot_start_leaves_no_standstill_to_the_next_one() -> None:
    world = running()
    world.end(1, signal=9)
    world.until("starting")
    world.stand(70.0)
    assert states(world) == ["open", "standstill"]
    node = world.node_states["node0"]
    node.failed_generation, node.failure = world.state.record.generation, "no memory"
    restart(world)
    assert states(world)[1] == "resolved"

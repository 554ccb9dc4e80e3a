"""Where the wall time of a run went, told by worlds with known stories."""

import math
from typing import Any

import pytest

from holdfast_core import coordinator
from holdfast_core.accounting.ledger import goodput_ratio, settled_time_use, time_use
from holdfast_core.model import Observation, StopRequest
from holdfast_daemon.validation.message_rules import check_record
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import TIME_USES
from tests.core.runs import end_ranks, enter_phase
from tests.support.core_world import TICK_S, World

CREATED_UNIX_S = 999_990.0
"""Ten seconds before a world's first tick."""


def started(**options: Any) -> World:
    world = World(created_unix_s=CREATED_UNIX_S, **options)
    world.until("starting")
    return world


def trained(steps: int = 5, **options: Any) -> World:
    """Return a world that has trained steps of one second each."""
    world = started(**options)
    step(world, steps)
    return world


def trained_before() -> tuple[World, dict[str, float]]:
    """Return a world that has trained five steps, and its uses so far."""
    world = trained()
    return world, used(world)


def step(world: World, count: int = 1, *, seconds: float = 1.0, **phases: float) -> None:
    """Let steps take some time: in each, ``phases`` have their seconds and training the rest."""
    for _ in range(count):
        for _ in range(round(seconds / TICK_S) - 1):
            world.tick()
        spent = {common.Phase.Value(f"PHASE_{name.upper()}"): spent_s for name, spent_s in phases.items()}
        world.spent_s.update(spent)
        world.train(step_s=seconds - sum(spent.values()), tick_s=TICK_S)


def used(world: World) -> dict[str, float]:
    """Return the uses that have seconds, and check that all of them sum to the wall time."""
    spent = time_use(world.state, world.now)
    assert tuple(spent) == TIME_USES
    assert min(spent.values()) >= 0.0
    ended = world.state.record.time_use.ended_unix_s or world.now
    assert math.fsum(spent.values()) == pytest.approx(ended - CREATED_UNIX_S, rel=1e-9)
    return {use: seconds for use, seconds in spent.items() if seconds > 1e-6}


def test_all_time_before_the_first_step_is_start_up() -> None:
    world = started()
    assert used(world) == pytest.approx({"start_up": world.now - CREATED_UNIX_S})
    world.stand(20)
    waited_s = world.now - CREATED_UNIX_S
    step(world, 3)
    assert used(world) == pytest.approx({"start_up": waited_s, "productive": 3.0})


def test_a_step_counts_by_its_phases() -> None:
    world = trained(3)
    before = used(world)
    step(world, seconds=9.0, checkpoint=1.0, eval=3.0, data=2.0, idle=0.5)
    spent = used(world)
    assert spent["productive"] - before["productive"] == pytest.approx(2.5)
    assert {use: spent[use] for use in ("checkpoint_stall", "evaluation", "data_wait", "idle")} == pytest.approx(
        {"checkpoint_stall": 1.0, "evaluation": 3.0, "data_wait": 2.0, "idle": 0.5}
    )
    assert goodput_ratio(world.state, world.now) == pytest.approx(spent["productive"] / (world.now - CREATED_UNIX_S))


def test_a_dead_rank_costs_the_cut_step_detection_and_restart() -> None:
    world, before = trained_before()
    world.stand(0.4)
    world.end(3, signal=9)
    died = world.now
    world.tick()
    assert world.phase in ("gathering", "stopping")
    assert used(world)["detection"] == pytest.approx(TICK_S)
    judged = world.now
    world.stand(3)
    assert world.phase == "starting"
    assert used(world)["restart"] == pytest.approx(world.now - judged)
    began = world.now
    step(world, 2)
    [incident] = world.incidents
    assert (incident.last_progress_unix_s, incident.detected_unix_s) == (died, judged)
    spent = used(world)
    assert (spent["detection"], spent["restart"]) == pytest.approx((judged - died, began - judged))
    assert spent["repeated_steps"] == pytest.approx(0.4)  # of the step that the fault cut short
    assert spent["productive"] == pytest.approx(before["productive"] + 2.0)


def test_a_step_that_is_known_only_after_the_verdict_is_from_before_it() -> None:
    world, before = trained_before()
    began = world.now
    world.stand(0.5)
    world.end(3, signal=9)
    world.obeys = False
    world.tick()
    judged = world.now
    assert world.phase == "gathering"
    report(world, 5, began + 0.4, duration_s=0.4)
    world.tick()
    report(world, 6, world.now, duration_s=2.0)  # it cannot have ended after the verdict
    world.tick()
    spent = used(world)
    assert spent["productive"] == pytest.approx(before["productive"] + judged - began)
    assert spent["restart"] == pytest.approx(world.now - judged)
    assert set(spent) == {"start_up", "productive", "restart"}


def test_a_first_step_that_warms_up_for_long_is_part_of_the_restart() -> None:
    world = trained(10)
    world.end(3, signal=9)
    world.tick()
    judged = world.now
    world.until("starting")
    step(world, seconds=9.0)
    spent = used(world)
    assert (spent["restart"], spent["productive"]) == pytest.approx((world.now - 1.0 - judged, 11.0))


def test_steps_that_a_restart_has_undone_are_repeated_until_the_run_is_where_it_was() -> None:
    world = trained()
    step(world, 4)
    for rank in range(world.world_size):
        world.rank(rank).snapshots[:] = [world.state.record.newest_step - 3]
    world.end(3, signal=9)
    world.until("starting")
    before = used(world)
    step(world, 5)
    spent = used(world)
    assert world.incidents[0].reached_step - world.state.record.resumed_step == 3
    assert spent["repeated_steps"] - before.get("repeated_steps", 0.0) == pytest.approx(3.0)
    assert spent["productive"] - before["productive"] == pytest.approx(2.0)
    assert world.state.totals.productive_s == pytest.approx(spent["productive"])


def test_a_hang_is_detection_until_holdfast_restarts_the_run() -> None:
    world = trained(10)
    before = used(world)
    world.hang(2)
    since = world.now
    while not world.state.record.standstill_incident:
        world.tick()
    assert used(world)["detection"] == pytest.approx(world.now - since)
    assert used(world)["productive"] == pytest.approx(before["productive"])
    world.until("gathering", ticks=10_000)
    judged = world.now
    world.until("starting")
    step(world)
    spent = used(world)
    assert spent["detection"] == pytest.approx(judged - since)
    assert spent["detection"] + spent["restart"] == pytest.approx(world.now - 1.0 - since)


def test_a_standstill_in_an_evaluation_is_an_evaluation_before_and_after_its_step_has_ended() -> None:
    world = trained(10)
    enter_phase(world, common.PHASE_EVAL)
    while not world.state.record.standstill_incident:
        world.tick()
    assert used(world)["evaluation"] > 5.0
    assert used(world).get("detection", 0.0) < 0.5
    reported = settled_time_use(world.state)
    step(world, seconds=2.0)
    spent, settled = used(world), settled_time_use(world.state)
    assert all(settled[use] >= seconds for use, seconds in reported.items())
    assert spent["evaluation"] > 5.0  # seen between the steps
    assert "detection" not in spent


def test_a_step_beyond_the_deadline_was_a_standstill_except_for_the_usual_step() -> None:
    world = trained(10)
    step(world, seconds=8.0)
    assert (used(world)["detection"], used(world)["productive"]) == pytest.approx((7.0, 11.0))


def test_time_between_steps_is_what_the_ranks_were_seen_to_do() -> None:
    world, before = trained_before()
    for phase, ticks in ((common.PHASE_EVAL, 20), (common.PHASE_DATA, 10), (common.PHASE_IDLE, 5)):
        enter_phase(world, phase)
        for _ in range(ticks):
            world.tick()
    enter_phase(world, common.PHASE_FORWARD_BACKWARD)
    world.tick()
    step(world)
    spent = used(world)
    # A look holds until the next one. So each phase lasts from its first tick to that of the next phase.
    assert {use: spent[use] for use in ("evaluation", "data_wait", "idle")} == pytest.approx(
        {"evaluation": 2.0, "data_wait": 1.0, "idle": 0.5}
    )
    assert spent["productive"] == pytest.approx(before["productive"] + 1.1)


def report(world: World, number: int, ended_unix_s: float, *, node: str = "node0", duration_s: float = 1.0) -> None:
    generation = world.state.record.generation
    summary = store.StepSummary(step=number, generation=generation, duration_s=duration_s, ended_unix_s=ended_unix_s)
    world.events.append(store.Event(node=node, generation=generation, step_summary=summary))


def test_time_without_a_daemon_that_no_step_covers_is_idle_in_the_end() -> None:
    world, before = trained_before()
    first = 5
    began = world.now
    for rank in range(world.world_size):
        world.rank(rank).stalled_s = -60.0  # the agent sees that it moves
    world.tick(seconds=60.0)
    assert used(world).keys() == {"start_up", "productive"}  # its steps may be on their way
    for number in (*range(40), 59):
        report(world, first + number, began + 1.0 + number)
    world.tick(seconds=0.0)
    assert (used(world)["productive"], used(world)["idle"]) == pytest.approx((before["productive"] + 41.0, 19.0))


def test_summaries_that_come_twice_late_or_out_of_order_count_once() -> None:
    world, first = trained(5, nodes=2, ranks_per_node=2), 5
    before = used(world)
    began = world.now
    world.tick(seconds=4.0)
    for number in (0, 1):
        report(world, first + number, began + 1.0 + number, node="node0")
    report(world, first, began + 1.0, node="node1")
    report(world, first, began + 1.0, node="node1")
    report(world, first + 1, began + 2.0, node="node1")
    report(world, first, began + 1.0, node="node0")
    world.tick(seconds=0.0)
    world.lose_leader()  # the next leader does not know which summaries the last one has counted
    for node in ("node0", "node1"):
        report(world, first, began + 1.0, node=node)
        report(world, first + 1, began + 2.0, node=node)
    world.tick(seconds=0.0)
    assert settled_time_use(world.state)["productive"] == pytest.approx(before["productive"] + 2.0)
    assert "repeated_steps" not in used(world)


@pytest.mark.parametrize("ahead_s", [-3600.0, -7.0, -1.0, 0.0, 1.0, 7.0, 3600.0])
def test_a_node_whose_clock_is_wrong_changes_little(ahead_s: float) -> None:
    world = started()
    world.tick()
    for number in range(10):
        for _ in range(10):
            world.tick()
        world.node_states["node0"].reported_unix_s = world.now + ahead_s
        for rank in range(world.world_size):
            state = world.rank(rank)
            state.steps_done, state.stalled_s = number + 1, 0.0
            state.progress.step, state.progress.phase = number + 1, common.PHASE_FORWARD_BACKWARD
        report(world, number, world.now + ahead_s)
        world.tick(seconds=0.0)
        used(world)
    spent = used(world)
    # Within the slack a clock is believed: the first step then seems to end earlier, or now.
    assert spent["productive"] == pytest.approx(10.0, abs=1.01)
    assert spent["start_up"] == pytest.approx(world.now - 10.0 - CREATED_UNIX_S, abs=1.01)


def test_a_clock_that_is_set_back_does_not_stop_the_account() -> None:
    world, before = trained_before()
    first = 5
    for number in range(5):
        world.tick(seconds=1.0)
        report(world, first + number, world.now - 3600.0)
        world.tick(seconds=0.0)
    assert used(world)["productive"] == pytest.approx(before["productive"] + 5.0)


def test_overlapping_steps_are_cut_to_the_time_that_has_passed() -> None:
    world, before = trained_before()
    first = 5
    world.tick(seconds=1.0)
    report(world, first, world.now, duration_s=500.0)
    report(world, first + 1, world.now, duration_s=500.0)
    world.tick(seconds=0.0)
    spent = used(world)
    assert spent["productive"] + spent.get("detection", 0.0) == pytest.approx(before["productive"] + 1.0)
    assert spent["start_up"] == before["start_up"]


def test_a_new_leader_continues_the_account() -> None:
    world, before = trained_before()
    world.lose_leader()
    assert used(world) == pytest.approx(before)
    step(world, 2)
    assert used(world)["productive"] == pytest.approx(before["productive"] + 2.0)


def test_after_a_lost_record_the_ranks_own_counts_are_evidence_and_the_rest_is_idle() -> None:
    world, before = trained_before()
    for rank in range(world.world_size):
        state = world.rank(rank)
        state.first_step_ended_unix_s = CREATED_UNIX_S + before["start_up"] + 1.0
        state.phase_s[common.PHASE_FORWARD_BACKWARD] = 4.0
        state.phase_s[common.PHASE_EVAL] = 1.0
    world.empty_store()
    world.tick(seconds=2.0)
    spent = used(world)
    assert (spent["productive"], spent["evaluation"]) == pytest.approx((4.0, 1.0))
    assert (spent["start_up"], spent["idle"]) == pytest.approx((before["start_up"] + 1.0, 1.0))
    report(world, 3, world.now - 1.5)  # it is one of those that the rank has counted
    world.tick(seconds=0.0)
    assert used(world)["productive"] == pytest.approx(4.0)
    step(world)
    assert used(world)["productive"] > 4.9


def test_a_finished_run_adds_nothing_more() -> None:
    world = trained(5)
    for rank in range(world.world_size):
        world.rank(rank).progress.phase = common.PHASE_IDLE
        world.end(rank, code=0)
    world.until("finished")
    spent = used(world)
    world.stand(30)
    report(world, 5, world.now)
    world.tick()
    assert used(world) == spent
    assert sum(settled_time_use(world.state).values()) == pytest.approx(sum(spent.values()))


def test_what_an_operators_stop_cuts_short_is_lost() -> None:
    world, before = trained_before()
    world.stand(0.5)
    world.tick(StopRequest())
    assert world.phase == "failed"
    spent = used(world)
    assert (spent["repeated_steps"], spent["productive"]) == pytest.approx((0.6, before["productive"]))


def test_a_planned_stop_loses_nothing() -> None:
    world = trained(5)
    world.tick(StopRequest(grace_s=30.0))
    assert world.phase == "leaving"
    while world.rank(0).progress.step <= world.state.record.leave_step:
        step(world)
    end_ranks(world, *range(world.world_size), code=0)
    world.until("finished")
    spent = used(world)
    assert set(spent) <= {"start_up", "productive", "idle"}
    assert spent["productive"] == pytest.approx(world.now - CREATED_UNIX_S - spent["start_up"], abs=0.5)


def test_a_run_that_is_given_up_ends_in_restart() -> None:
    world, before = trained_before()
    while world.phase != "failed":
        world.end(3, signal=9)
        world.tick()
        world.stand(2)
    spent = used(world)
    first = world.incidents[0]
    assert spent["detection"] == pytest.approx(first.detected_unix_s - first.last_progress_unix_s)
    assert spent["restart"] == pytest.approx(world.state.record.time_use.ended_unix_s - first.detected_unix_s)
    assert spent["productive"] == before["productive"]
    world.stand(5)
    assert used(world) == spent


def test_a_fault_before_the_first_step_leaves_the_start_up_before_it() -> None:
    world = started()
    world.stand(5)
    world.end(1, code=1)
    died = world.now
    world.until("gathering")
    judged = world.incidents[0].detected_unix_s
    world.until("starting")
    world.stand(1)
    assert used(world) == pytest.approx(
        {"start_up": died - CREATED_UNIX_S, "detection": judged - died, "restart": world.now - judged}
    )
    step(world)
    assert used(world)["productive"] == pytest.approx(1.0)


def test_a_second_fault_before_the_first_new_step_is_part_of_the_restart() -> None:
    world = trained(5)
    world.end(3, signal=9)
    world.tick()
    judged = world.now
    world.until("starting")
    world.stand(2)
    world.end(1, signal=9)
    world.tick()
    world.until("starting")
    step(world)
    assert used(world)["restart"] == pytest.approx(world.now - 1.0 - judged)


def observed() -> World:
    world = World(created_unix_s=CREATED_UNIX_S, mode=store.MODE_OBSERVE)
    world.spec.ranks_per_node = 0  # another launcher starts the ranks
    world.state = coordinator.begin(world.spec)
    launch(world, 1, 0)
    step(world, 6)
    return world


def launch(world: World, generation: int, step: int) -> None:
    node = world.node_states["node0"]
    node.generation, node.world_size, node.stopped = generation, 4, False
    del node.ranks[:]
    for rank in range(4):
        progress = common.Progress(step=step, phase=common.PHASE_INIT)
        node.ranks.add(rank=rank, pid=100 * generation + rank, life=store.LIFE_RUNNING, progress=progress)
    world.tick()


def test_in_an_observed_run_the_launchers_restart_is_one_too() -> None:
    world = observed()
    before = used(world)
    world.end(3, signal=9)
    died = world.now
    world.tick()
    judged = world.now
    assert world.incidents
    world.stand(10)
    launch(world, 2, 4)
    step(world, 4)
    spent = used(world)
    assert (spent["detection"], spent["restart"]) == pytest.approx((judged - died, world.now - 4.0 - judged))
    assert (spent["repeated_steps"], spent["productive"]) == pytest.approx((2.0, before["productive"] + 2.0))


@pytest.mark.parametrize("ends_by", ["a signal", "its launcher"])
def test_an_observed_run_that_hangs_stands_still_until_it_ends(ends_by: str) -> None:
    world = observed()
    hung = world.now
    for rank in world.node_states["node0"].ranks:
        rank.progress.phase = common.PHASE_FORWARD_BACKWARD
    world.stand(100)
    assert [incident.verdict.kind for incident in world.incidents] == [store.VERDICT_KIND_STANDSTILL]
    spent = used(world)
    assert spent["detection"] == pytest.approx(100.0, abs=1.0)
    assert "restart" not in spent
    if ends_by == "a signal":
        world.end(3, signal=9)
        world.tick()
    ended = world.now
    launch(world, 2, 6)
    step(world)
    spent = used(world)
    assert spent["detection"] == pytest.approx(ended - hung, abs=1.0)
    assert spent.get("restart", 0.0) < 2.0


def test_an_observed_run_that_moves_on_without_a_lost_rank_has_not_been_restarted() -> None:
    world = observed()
    before = used(world)
    world.end(3, signal=9)
    world.tick()
    world.tick()
    assert used(world)["restart"] > 0.0
    report(world, 6, world.now, duration_s=0.2)
    world.tick(seconds=0.0)
    assert settled_time_use(world.state).get("restart", 0.0) == 0.0
    assert used(world)["productive"] == pytest.approx(before["productive"] + 0.2)


def test_an_observed_run_that_is_restarted_before_any_verdict_loses_the_cut_step() -> None:
    world = observed()
    world.stand(0.3)
    launch(world, 2, 6)
    began = world.now
    world.stand(1)
    step(world)
    spent = used(world)
    assert (spent["repeated_steps"], spent["restart"]) == pytest.approx((0.4, world.now - 1.0 - began))


def test_a_new_run_of_the_name_begins_a_new_account() -> None:
    world = trained(5)
    again = World(created_unix_s=world.now, now=world.now)
    again.until("starting")
    assert time_use(again.state, again.now)["productive"] == 0.0
    assert sum(time_use(again.state, again.now).values()) == pytest.approx(again.now - world.now)


def test_without_a_time_of_creation_the_account_begins_with_the_leader() -> None:
    world = World()
    assert sum(time_use(world.state, world.now).values()) == 0.0
    assert goodput_ratio(world.state, world.now) is None
    world.tick()
    world.tick()
    assert sum(time_use(world.state, world.now).values()) == pytest.approx(TICK_S)


def test_a_record_of_a_version_without_accounts_is_taken_over() -> None:
    world = trained(5)
    record = store.CoordinatorState()
    record.CopyFrom(world.state.record)
    record.ClearField("time_use")
    world.rank(0).phase_s[common.PHASE_FORWARD_BACKWARD] = 5.0
    world.state = coordinator.begin(world.spec, record)
    world.tick()
    assert used(world)["productive"] == pytest.approx(5.0)
    record.phase = store.RUN_PHASE_FINISHED
    state, _ = coordinator.step(coordinator.begin(world.spec, record), world.now, Observation())
    assert time_use(state, world.now + 100.0) == time_use(state, world.now)


def test_what_is_taken_over_from_a_rank_without_a_step_number_can_be_stored() -> None:
    world = trained(2)
    world.rank(0).progress.step = -1
    world.empty_store()
    world.tick()
    check_record(world.state.record, "r")

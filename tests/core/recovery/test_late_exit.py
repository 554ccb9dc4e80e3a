"""Hangs and failures after the last step undo nothing."""

from holdfast_core.detectors.deaths.late_exit import REPORT_S
from holdfast_core.model import StopRequest
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import end_ranks, enter_phase, running, set_ranks
from tests.support.core_world import World


def leave(world: World, *numbers: int) -> None:
    set_ranks(world, *numbers, left_training=True)
    enter_phase(world, common.PHASE_IDLE, *numbers)


def late() -> World:
    """Return a run whose ranks have left training, and of which only rank 3 has not ended."""
    world = running()
    leave(world, 0, 1, 2, 3)
    end_ranks(world, 0, 1, 2, code=0, finished=True)
    return world


def test_a_process_that_does_not_end_is_reported_within_a_minute() -> None:
    world = late()
    world.stand(REPORT_S - 1)
    assert world.incidents == []
    world.stand(2.0)
    (incident,) = world.incidents
    assert (incident.verdict.kind, list(incident.verdict.culprits)) == (store.VERDICT_KIND_LATE_EXIT, [3])
    assert REPORT_S < 60.0
    world.stand(100.0)
    assert len(world.incidents) == 1


def test_it_is_ended_only_when_nothing_has_moved_for_long_and_the_run_has_finished() -> None:
    world = late()
    world.moving = {3}
    world.stand(500.0)
    assert world.phase == "running"
    world.moving = set()
    world.stand(178.0)
    assert world.phase == "running"
    world.stand(4.0)
    assert world.phase == "finished"
    assert "rank 3 did not exit after training" in world.state.record.outcome
    assert [command.finish.succeeded for command in world.sent("finish")][-1]


def test_a_rank_whose_hooks_are_still_open_after_its_loop_counts_once_others_have_left() -> None:
    world = running()
    enter_phase(world, common.PHASE_IDLE, 0, 1, 2)
    end_ranks(world, 0, 1, 2, code=0, finished=True)
    world.rank(3).progress.phase = common.PHASE_IDLE
    world.stand(REPORT_S + 2)
    assert [incident.verdict.kind for incident in world.incidents] == [store.VERDICT_KIND_LATE_EXIT]


def test_a_final_evaluation_that_moves_is_left_alone_and_one_that_hangs_is_reported_and_ended() -> None:
    world = running()
    enter_phase(world, common.PHASE_IDLE, 0, 1, 2)
    end_ranks(world, 0, 1, 2, code=0, finished=True)
    world.rank(3).progress.phase = common.PHASE_EVAL
    world.moving = {3}
    world.stand(500.0)
    assert (world.phase, world.incidents) == ("running", [])
    world.moving = set()
    world.stand(REPORT_S + 1.0)
    (incident,) = world.incidents
    assert incident.verdict.kind == store.VERDICT_KIND_LATE_EXIT
    assert incident.verdict.message == "rank 3 stands still in eval of step 5, and no other rank trains any more"
    world.stand(180.0)
    assert (world.phase, world.sent("stop")) == ("finished", [])


def test_a_crash_after_training_undoes_nothing() -> None:
    world = late()
    world.end(3, signal=6, finished=True)
    world.stand(1.0)
    assert (world.phase, world.sent("stop"), world.incidents) == ("finished", [], [])


def test_a_crash_while_others_still_train_is_a_death() -> None:
    world = running()
    leave(world, 3)
    world.end(3, signal=6, finished=True)
    world.until("gathering")
    assert world.incidents[0].verdict.kind == store.VERDICT_KIND_DEAD_RANK


def test_a_planned_stop_whose_last_process_hangs_in_its_exit_has_stopped() -> None:
    world = running()
    world.tick(StopRequest(grace_s=5.0))
    world.until("leaving")
    leave(world, 0, 1, 2, 3)
    end_ranks(world, 0, 1, 2, code=0, finished=True)
    world.stand(6.0)
    assert world.phase == "finished"
    assert world.state.record.outcome.startswith("stopped after step")


def test_an_observed_run_is_never_ended() -> None:
    world = running(mode=store.MODE_OBSERVE)
    leave(world, 0, 1, 2, 3)
    world.stand(300.0)
    assert (world.phase, world.sent("finish"), len(world.incidents)) == ("running", [], 1)

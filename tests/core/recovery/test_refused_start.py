"""A first start without hope ends the run once; later starts, and mode observe, are left alone."""

from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import end_ranks, restart, running
from tests.support.core_world import World

NO_MODULE = "Traceback\n  File train.py\nModuleNotFoundError: No module named 'nosuch'"


def end_all(world: World) -> None:
    end_ranks(world, *range(world.ranks_per_node), code=1, last_words=NO_MODULE, never_attached=True)


def test_a_program_that_cannot_run_is_started_once() -> None:
    world = World()
    world.until("starting")
    end_all(world)
    world.until("failed")
    assert world.state.record.generation == 1
    assert "No module named 'nosuch'" in world.state.record.outcome
    assert [incident.verdict.kind for incident in world.incidents] == [store.VERDICT_KIND_BAD_CONFIGURATION]


def test_the_same_after_a_start_that_trained_is_a_death() -> None:
    world = running()
    world.end(0, signal=9)
    restart(world)
    end_all(world)
    world.until("stopping")
    assert world.incidents[-1].verdict.kind == store.VERDICT_KIND_DEAD_RANK


def test_a_launcher_within_a_rank_ends_the_run_in_mode_act_alone() -> None:
    for mode, phase in ((store.MODE_ACT, "failed"), (store.MODE_OBSERVE, "starting")):
        world = World(mode=mode)
        world.until("starting")
        world.rank(0).launched_world_size = 8
        world.tick()
        world.tick()
        assert world.phase == phase

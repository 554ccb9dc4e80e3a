"""Failed checkpoints as incidents."""

from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import running, send_event
from tests.support.core_world import World


def fail(world: World, step: int, node: str = "node0") -> None:
    failure = store.CheckpointFailed(step=step, reason="no space left")
    send_event(world, node=node, checkpoint_failed=failure)


def commit(world: World, step: int) -> None:
    send_event(world, checkpoint_committed=store.CheckpointCommitted(step=step))


def stories(world: World) -> list[list[str]]:
    """Return the message and the lines after it, of each incident."""
    return [
        [incident.verdict.message, *(action.what for action in incident.actions)]
        for incident in world.incidents
        if incident.verdict.kind == store.VERDICT_KIND_CHECKPOINT_FAILED
    ]


def test_checkpoints_that_fail_one_after_the_other_are_one_incident() -> None:
    world = running(nodes=2, ranks_per_node=2)
    fail(world, 10, "node0")
    fail(world, 10, "node1")
    world.lose_leader()
    fail(world, 20, "node1")
    assert stories(world) == [
        [
            "checkpoint of step 10 failed: no space left",
            "node node1: checkpoint of step 10 failed: no space left",
            "node node1: checkpoint of step 20 failed: no space left",
        ]
    ]


def test_after_two_commits_in_a_row_a_failure_is_another_incident() -> None:
    world = running()
    fail(world, 10)
    for step in (20, 20, 30):
        commit(world, step)
    fail(world, 40)
    assert stories(world) == [
        ["checkpoint of step 10 failed: no space left", "the checkpoint of step 20 is committed"],
        ["checkpoint of step 40 failed: no space left"],
    ]


def test_copies_that_fail_after_every_commit_are_one_incident() -> None:
    world = running()
    for step in (10, 20, 30):
        commit(world, step)
        fail(world, step)
    [story] = stories(world)
    assert [line for line in story if "failed" in line] == [
        "checkpoint of step 10 failed: no space left",
        "node node0: checkpoint of step 20 failed: no space left",
        "node node0: checkpoint of step 30 failed: no space left",
    ]


def test_a_story_with_the_most_lines_can_still_be_ended() -> None:
    world = running()
    for step in range(100):
        fail(world, step)
    commit(world, 100)
    commit(world, 101)
    fail(world, 102)
    long, short = stories(world)
    assert len(long) == 51
    assert len(short) == 1

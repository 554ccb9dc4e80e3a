"""Checkpoints that are due by time, and checkpoints that are pinned."""

from holdfast_core.detectors.numbers.loss_baseline import MIN_HISTORY
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import running, send_event
from tests.support.core_world import World

EVERY_S = 600.0


def timed() -> World:
    world = running()
    world.spec.checkpoint_every_s = EVERY_S
    world.tick()
    return world


def commanded_steps(world: World) -> list[int]:
    return [command.take_checkpoint.step for command in world.sent("take_checkpoint")]


def pass_time(world: World, seconds: float) -> None:
    world.now += seconds
    world.train()


def test_a_checkpoint_is_commanded_each_time_the_interval_is_over() -> None:
    world = timed()
    pass_time(world, 0.4 * EVERY_S)
    assert commanded_steps(world) == []
    pass_time(world, 0.7 * EVERY_S)
    assert len(commanded_steps(world)) == 1
    assert commanded_steps(world)[0] > world.rank(0).progress.step
    pass_time(world, 0.5 * EVERY_S)
    assert len(commanded_steps(world)) == 1
    pass_time(world, 0.6 * EVERY_S)
    assert len(commanded_steps(world)) == 2


def test_a_checkpoint_that_is_committed_for_another_reason_puts_the_next_one_off() -> None:
    world = timed()
    pass_time(world, 0.6 * EVERY_S)
    send_event(world, checkpoint_committed=store.CheckpointCommitted(step=7))
    pass_time(world, 0.6 * EVERY_S)
    assert commanded_steps(world) == []
    pass_time(world, 0.6 * EVERY_S)
    assert len(commanded_steps(world)) == 1


def test_a_new_leader_does_not_begin_to_count_anew() -> None:
    world = timed()
    pass_time(world, 0.6 * EVERY_S)
    world.lose_leader()
    world.train(4)
    pass_time(world, 0.6 * EVERY_S)
    assert len(commanded_steps(world)) == 1


def test_without_an_interval_none_is_commanded() -> None:
    world = running()
    pass_time(world, 10 * EVERY_S)
    assert commanded_steps(world) == []


def spike(world: World) -> store.Incident:
    """Let the run train for a while, and let its loss then rise for three steps."""
    world.train(MIN_HISTORY)
    world.train(3, loss=50.0)
    incident = world.incidents[-1]
    assert incident.verdict.kind == store.VERDICT_KIND_LOSS_SPIKE
    return incident


def test_a_spike_has_the_last_checkpoint_kept_that_is_known_to_be_good() -> None:
    world = running()
    proven = world.rank(0).progress.step + MIN_HISTORY - 1
    # The loss of the last good step was computed before its update, which may have done the harm.
    world.node_states["node0"].checkpoints[:] = [3, proven - 1, proven, proven + 2]
    incident = spike(world)
    [command] = world.sent("keep_checkpoint")
    assert (command.keep_checkpoint.step, command.keep_checkpoint.reason) == (proven - 1, incident.verdict.message)
    assert f"step {proven - 1}" in incident.actions[-1].what


def test_an_unreadable_checkpoint_is_not_kept() -> None:
    world = running()
    world.node_states["node0"].checkpoints[:] = [3]
    world.events.append(store.Event(checkpoint_unreadable=store.CheckpointUnreadable(step=3, reason="damaged")))
    incident = spike(world)
    assert world.sent("keep_checkpoint") == []
    assert "no checkpoint" in incident.actions[-1].what


def test_a_checkpoint_that_was_on_its_way_is_kept_once_it_is_committed() -> None:
    world = running()
    proven = world.rank(0).progress.step + MIN_HISTORY - 1
    incident = spike(world)
    assert world.sent("keep_checkpoint") == []
    assert incident.actions[-1].what == "no checkpoint from before it exists now, so none is kept"
    for step in (proven - 1, proven + 2):
        send_event(world, checkpoint_committed=store.CheckpointCommitted(step=step))
    [command] = world.sent("keep_checkpoint")
    assert command.keep_checkpoint.step == proven - 1
    assert world.incidents[-1].actions[-1].what == f"the checkpoint of step {proven - 1}, from before it, is kept"


def test_one_that_was_taken_after_the_incident_is_not_kept_and_ends_the_wait() -> None:
    world = running()
    proven = world.rank(0).progress.step + MIN_HISTORY - 1
    spike(world)
    for step in (proven + 2, proven - 1):
        send_event(world, checkpoint_committed=store.CheckpointCommitted(step=step))
    assert world.sent("keep_checkpoint") == []


def test_a_new_leader_knows_which_checkpoint_is_wanted() -> None:
    world = running()
    proven = world.rank(0).progress.step + MIN_HISTORY - 1
    spike(world)
    world.lose_leader()
    send_event(world, checkpoint_committed=store.CheckpointCommitted(step=proven - 1))
    assert [command.keep_checkpoint.step for command in world.sent("keep_checkpoint")] == [proven - 1]


def test_a_third_checkpoint_is_not_kept_for_a_kind_until_an_earlier_one_is_gone() -> None:
    world = running()
    checkpoints = world.node_states["node0"].checkpoints

    def kept() -> list[int]:
        return [command.keep_checkpoint.step for command in world.sent("keep_checkpoint")]

    good: list[int] = []
    world.train(2 * MIN_HISTORY)
    for _ in range(3):
        good.append(world.rank(0).progress.step + MIN_HISTORY // 2)
        checkpoints.append(good[-1])
        incident = spike(world)
    assert kept() == good[:2]
    assert incident.actions[-1].what.startswith(f"the checkpoint of step {good[2]}, from before it, is not kept")
    checkpoints.remove(good[0])  # an operator has released it, and it was removed when it was old
    incident = spike(world)
    assert kept() == [*good[:2], good[2]]
    assert "is kept" in incident.actions[-1].what

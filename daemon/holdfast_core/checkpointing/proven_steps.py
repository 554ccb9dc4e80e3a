"""Which checkpoints are proven: a finite loss of a later step has followed their state.

The loss of a step is computed with the state before it. So a finite loss proves the states of all earlier steps, and
not that of its own step: ``CoordinatorState.proven`` holds it. The newest proven checkpoint is marked, and agents do
not remove it: if the loss is reported rarely, all newer ones may hold a bad state by the time that a loss shows it.
"""

from holdfast_core.model import committed_steps
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

OPEN_KEPT = 64
"""Checkpoints that wait for a finite loss and are remembered: the oldest one, and the newest of the others."""


def begin_generation(tick: Tick) -> None:
    """Forget what the generation before has shown of steps that are done again."""
    point, source = tick.record.resumed_step, tick.record.source
    with tick.edit_record() as record:
        proven = record.proven
        if proven.HasField("before_step"):
            proven.before_step = min(proven.before_step, point + 1)
        staying = {step for step in proven.open if step <= point}
        if source == store.SOURCE_CHECKPOINT and not (proven.HasField("before_step") and point < proven.before_step):
            staying.add(point)
        proven.open[:] = sorted(staying)
    mark_newest(tick)


def see_committed(tick: Tick, step: int) -> None:
    """Note a checkpoint that is committed. Its state may be proven already, if writing it took long."""
    if step in tick.record.proven.open:
        return
    with tick.edit_record() as record:
        steps = sorted({*record.proven.open, step})
        record.proven.open[:] = [*steps[:1], *steps[1:][1 - OPEN_KEPT :]]
    mark_newest(tick)


def mark_newest(tick: Tick) -> None:
    """Have the newest checkpoint marked that is proven now, unless it is marked already."""
    proven = tick.record.proven
    good = [step for step in proven.open if step < proven.before_step] if proven.HasField("before_step") else []
    if not good:
        return
    with tick.edit_record() as record:
        record.proven.open[:] = [step for step in proven.open if step > good[-1]]
    message = store.ProveCheckpoint(step=good[-1], finite_step=proven.before_step)
    # One node is enough: all see the same place. If it fails, the checkpoint that was marked before stays.
    command = store.NodeCommand(generation=tick.record.generation, prove_checkpoint=message)
    for node in tick.record.nodes[:1]:
        tick.send_to(node, command)


def bad_from(tick: Tick) -> int | None:
    """Return the first step whose state a restart should leave unused, if the last restart has met a bad loss again.

    A loss that is not finite may be that of one bad batch. So a first restart uses the newest state. If that state was
    not proven, and its generation has ended at a bad loss too, the next restart uses the newest proven one.
    """
    record = tick.record
    is_bad = record.loss_counts.HasField("nonfinite_since") and record.proven.HasField("before_step")
    return record.proven.before_step if is_bad and record.resumed_step >= record.proven.before_step else None


def newest_committed(tick: Tick, before_step: int) -> int | None:
    """Return the newest committed checkpoint from before a step that can be read, as far as is known; None: none is."""
    usable = set(committed_steps(tick.state)) - set(tick.record.unreadable_checkpoints)
    return max((step for step in usable if step < before_step), default=None)


def first_doubtful(tick: Tick) -> int:
    """Return the first step whose state may be bad, after a loss that was not finite."""
    proven = tick.record.proven
    if proven.HasField("before_step"):
        return proven.before_step
    return proven.open[0] if proven.open else 0  # no loss was finite: the state that the run began with may be bad

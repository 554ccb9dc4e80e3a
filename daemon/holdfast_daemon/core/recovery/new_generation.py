"""What is known of the ranks counts no longer once others take their places."""

from dataclasses import replace

from holdfast_daemon.core import detection
from holdfast_daemon.core.recovery.restore import present_history
from holdfast_daemon.core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store


def forget(tick: Tick, after_step: int) -> None:
    """Forget the ranks of the generation before; the new one goes on after ``after_step``."""
    tick.state = replace(
        tick.state,
        first_exit_unix_s=0.0,
        reported_once=frozenset(),
        counted_steps={},
        pending_steps={},
        suspicion=None,
        gathered_unix_s=0.0,
        stacks={},
        heard_of={},
        all_stopped_unix_s=0.0,
        several_stopped_unix_s=0.0,
        deadlines=tick.state.deadlines.new_generation(),
    )
    detection.restart(tick, after_step)


def begin_history(tick: Tick, history: store.History) -> None:
    """Have the next checkpoints belong to a new history."""
    with tick.edit_record() as record:
        record.history.CopyFrom(history)
        record.history_is_known = False


def see_history(tick: Tick) -> None:
    """Once nodes have gone to the newest history, forget which steps after its start were unreadable before it."""
    present = present_history(tick.state.members)
    if tick.record.history_is_known or not tick.record.HasField("history") or present < tick.record.history.number:
        return
    with tick.edit_record() as record:
        record.history_is_known = True
        still_there = [step for step in record.unreadable_checkpoints if step <= record.history.parent_step]
        record.unreadable_checkpoints[:] = still_there

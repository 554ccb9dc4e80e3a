"""The roll-back after a bad loss: the run returns to its newest proven state, and leaves out what it has trained since.

A bad loss may come from the data, from a fault of the hardware, or from training itself. Nobody knows which. So the
ranks start again from a state of which later losses were good, and the data of all steps since are left out, up to the
step that showed the bad loss. The next step trains on what comes after them. (PaLM's authors got past spikes in this
way: https://arxiv.org/abs/2204.02311, section 5.1.)

What is left out is in the record, and with the history that begins here among the checkpoints: each later start leaves
it out, too. A run that is given the same windows at its start is trained to the same bits.
"""

from dataclasses import replace

from holdfast_core.checkpointing import proven_steps, replicas, restore_point
from holdfast_core.checkpointing.restore_point import RestorePoint
from holdfast_core.tick import Tick
from holdfast_proto.left_out import MOST_WINDOWS, Windows, data_of, from_messages, joined, shown, to_messages
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ROLL_BACKS


def most(spec: store.RunSpec) -> int:
    """Return how many roll-backs a run has."""
    policy = spec.loss_policy
    return policy.roll_backs if policy.HasField("roll_backs") else ROLL_BACKS


def obstacle(tick: Tick, before_step: int | None) -> str:
    """Return why the run cannot return to a state from before a step; "" if it can. None: no state is good."""
    done, limit = tick.record.loss_counts.roll_backs, most(tick.state.spec)
    if done >= limit:
        return f"the run has been rolled back already ({done} of {limit})" if done else "loss.roll_backs is 0"
    if len(tick.record.left_out) >= MOST_WINDOWS:
        return f"{MOST_WINDOWS} windows of data are left out already"
    if before_step is None or target(tick, before_step) is None:
        return "there is no state to return to from before the bad loss"
    return ""


def order(tick: Tick, before_step: int, bad_step: int) -> None:
    """Have the next generation start from a state before ``before_step``.

    It leaves out the data of the steps after that state, up to those of ``bad_step``.
    """
    data = data_of(bad_step, left_out(tick)) + tick.state.spec.loss_policy.further_steps
    with tick.edit_record() as record:
        record.roll_back.CopyFrom(store.RollBack(before_step=before_step, last_data=data))
        record.loss_counts.roll_backs += 1


def is_ordered(tick: Tick) -> bool:
    """Return whether a roll-back is to begin, and no generation has begun with it yet."""
    return tick.record.HasField("roll_back") and not tick.record.roll_back.generation


def target(tick: Tick, before_step: int) -> RestorePoint | None:
    """Return the newest state from before a step; None: there is none."""
    return restore_point.choose(
        tick.state.members,
        tick.world_size,
        tick.record.unreadable_checkpoints,
        tick.now,
        before_step,
        replicas=replicas.usable(tick),
        is_strict=True,
    )


def with_history(tick: Tick, point: RestorePoint) -> RestorePoint:
    """Return a point with which a history begins in any case: its record keeps what is left out."""
    if point.history is not None:
        return point
    number = max(restore_point.present_history(tick.state.members), 1)
    history = store.History(number=number + 1, parent=number, parent_step=point.step, since_unix_s=tick.now)
    return replace(point, history=history)


def begin_generation(tick: Tick) -> None:
    """Note what the newest generation leaves out. After a roll-back, count losses anew from its first step."""
    windows = left_out(tick)
    if not tick.record.HasField("roll_back"):
        _note(tick, windows)
        return
    ordered, point = tick.record.roll_back, tick.record.resumed_step
    first = data_of(point + 1, windows)
    _note(tick, joined([*windows, (first, ordered.last_data - first + 1)]))
    with tick.edit_record() as record:
        record.roll_back.generation = record.generation
        record.newest_step = record.step_at_restart = point
        counts = record.loss_counts
        counts.judged_step = point
        counts.diverged = counts.nonfinite = 0
        counts.divergence_answered = counts.nonfinite_answered = False
        for name in ("nonfinite_since", "finite_step", "finite_loss"):
            counts.ClearField(name)


def see_first_steps(tick: Tick) -> None:
    """Forget the roll-back of a generation that trains."""
    if tick.record.HasField("roll_back") and not is_ordered(tick):
        with tick.edit_record() as record:
            record.ClearField("roll_back")


def left_out(tick: Tick) -> Windows:
    """Return what the run leaves out: what its record and the present history of its checkpoints say."""
    members = tick.state.members
    present = restore_point.present_history(members)
    kept = (one for node in members.values() if node.history == present for one in node.left_out)
    return from_messages([*tick.record.left_out, *kept])


def _note(tick: Tick, windows: Windows) -> None:
    if windows != from_messages(tick.record.left_out):
        with tick.edit_record() as record:
            del record.left_out[:]
            record.left_out.extend(to_messages(windows))


def left_out_line(tick: Tick) -> str:
    """Return what the newest generation leaves out, for people; "" if it leaves nothing out."""
    windows = from_messages(tick.record.left_out)
    return f", without the data of steps {shown(windows)}" if windows else ""


def bad_from(tick: Tick) -> int | None:
    """Return the first step whose state the next generation must not use; None: all states may be used."""
    of_losses = proven_steps.bad_from(tick)
    return tick.record.roll_back.before_step if tick.record.HasField("roll_back") else of_losses

"""Commands about checkpoints: to take one, by request or by time; to pin one."""

from holdfast_core import incidents
from holdfast_core.checkpointing.restore_point import newest_common_snapshot
from holdfast_core.model import CheckpointAnswered, committed_steps
from holdfast_core.naming import run_phase_name
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

PINS_PER_KIND = 2
_MOST_WANTED = 15
"""Incidents, besides the newest, that a checkpoint on its way can be kept for."""


def serve(tick: Tick) -> None:
    """Take a checkpoint that an operator requested, or answer why there is none now."""
    if not tick.state.saves:
        tick.actions.append(CheckpointAnswered(-1, "the run is only observed: its own program takes its checkpoints"))
    elif tick.record.phase != store.RUN_PHASE_RUNNING:
        phase = run_phase_name(tick.record.phase)
        tick.actions.append(CheckpointAnswered(-1, f"the run is {phase}, not running: try again when it is"))
    elif not tick.ranks:
        tick.actions.append(CheckpointAnswered(-1, "no node of the run is heard of: try again when one is"))
    elif tick.record.standstill_incident or tick.state.suspicion is not None:
        tick.actions.append(_answer_in_standstill(tick))
    else:
        step = take(tick)
        reason = "no step has been timed yet: try again after the next one"
        tick.actions.append(CheckpointAnswered(-1, reason) if step is None else CheckpointAnswered(step))


def _answer_in_standstill(tick: Tick) -> CheckpointAnswered:
    """Have the newest state in memory written: a step that no rank ends can be waited for in vain."""
    step = newest_common_snapshot(tick.state.members, tick.world_size)
    committed = max(_committed(tick), default=-1)
    if step < 0 and committed < 0:
        return CheckpointAnswered(-1, "the run stands still, and memory has no state of it: try again when it moves")
    if step <= committed:
        known = f"memory has no newer state than the checkpoint of step {committed}"
        return CheckpointAnswered(-1, f"the run stands still, and {known}: try again when it moves")
    persist_newest_snapshot(tick)
    return CheckpointAnswered(step)


def command_by_time(tick: Tick) -> None:
    """Take a checkpoint if the newest one, whatever it was taken for, is older than the run's setting allows."""
    every_s, since = tick.state.spec.checkpoint_every_s, tick.record.checkpoint_since_unix_s
    if every_s and not since:
        with tick.edit_record() as record:
            record.checkpoint_since_unix_s = tick.now
    elif every_s and tick.now - since >= every_s:
        take(tick)


def restart_timer(tick: Tick) -> None:
    """Count the time to the next checkpoint from now: one is committed, or on its way."""
    if tick.state.spec.checkpoint_every_s:
        with tick.edit_record() as record:
            record.checkpoint_since_unix_s = tick.now


def persist_newest_snapshot(tick: Tick) -> bool:
    """Have the newest common snapshot written, if it is newer than all committed checkpoints; return whether it is."""
    step = newest_common_snapshot(tick.state.members, tick.world_size)
    if step <= max(_committed(tick), default=-1):
        return False
    message = store.PersistSnapshot(step=step)
    tick.send(tick.record.nodes, lambda _: store.NodeCommand(persist_snapshot=message))
    return True


def keep_newest_before(tick: Tick, step: int, incident: store.Incident) -> None:
    """Pin the newest checkpoint from before ``step``, and add that to the incident's story.

    If there is none, one may be on its way: the next one that is committed is pinned if it is from before ``step``.
    """
    readable = _committed(tick) - set(tick.record.unreadable_checkpoints)
    good = max((known for known in readable if known < step), default=None)
    if good is not None:
        _keep(tick, good, incident)
        return
    incidents.add_line(tick, incident, "no checkpoint from before it exists now, so none is kept")
    with tick.edit_record() as record:
        del record.wanted[:-_MOST_WANTED]
        record.wanted.add(incident=incident.id, before_step=step)


def keep_if_wanted(tick: Tick, step: int) -> None:
    """Pin a checkpoint that is just committed, if it was on its way when an incident began."""
    wanted = list(tick.record.wanted)
    if not wanted:
        return
    with tick.edit_record() as record:
        del record.wanted[:]  # whatever is committed after this one is from a later step
    for one in wanted:
        incident = tick.state.incidents.get(one.incident)
        if incident is not None and step < one.before_step:
            _keep(tick, step, incident)


def _keep(tick: Tick, good: int, incident: store.Incident) -> None:
    """Pin a checkpoint.

    At most two are pinned for each kind of incident: a run with many spikes would otherwise fill its disk. The oldest
    two stay, because only operators release a checkpoint.
    """
    committed = {*_committed(tick), good}
    pinned = [pin for pin in tick.record.pinned if pin.step in committed]
    steps = [pin.step for pin in pinned if pin.kind == incident.verdict.kind]
    if good not in steps and len(steps) >= PINS_PER_KIND:
        known = " and ".join(map(str, steps))
        incidents.add_line(
            tick,
            incident,
            f"the checkpoint of step {good}, from before it, is not kept: those of steps {known} were kept for earlier"
            " incidents of this kind, and Holdfast keeps no more",
        )
        return
    message = store.KeepCheckpoint(step=good, reason=incident.verdict.message)
    tick.send(tick.record.nodes, lambda _: store.NodeCommand(keep_checkpoint=message))
    if good not in steps:
        pinned.append(store.PinnedCheckpoint(kind=incident.verdict.kind, step=good))
    with tick.edit_record() as record:
        del record.pinned[:]
        record.pinned.extend(pinned)
    incidents.add_line(tick, incident, f"the checkpoint of step {good}, from before it, is kept")


def _committed(tick: Tick) -> set[int]:
    return set(committed_steps(tick.state))


def take(tick: Tick) -> int | None:
    """Have a checkpoint taken at a step ahead; return the step, or None before one is timed."""
    step = tick.step_ahead()
    if step is not None:
        tick.send(tick.record.nodes, lambda _: store.NodeCommand(take_checkpoint=store.TakeCheckpoint(step=step)))
        restart_timer(tick)
    return step

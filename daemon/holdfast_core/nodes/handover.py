"""Spares take the places of nodes that should not train, at a restart, if no step is lost for that.

Such a node is alive, and holds the newest state of its ranks in memory. So it first writes that as a part of a
checkpoint. If that cannot be, the node trains on.
"""

from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.checkpointing import checkpoint_commands
from holdfast_core.checkpointing.restore_point import RestorePoint
from holdfast_core.nodes import quarantine
from holdfast_core.recovery import missing_nodes, new_generation
from holdfast_core.recovery.ending import RESEND_S
from holdfast_core.recovery.resized_state import say
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

WRITE_PATIENCE_S = 300.0
"""Longest wait for the checkpoint. The run stands still for that long."""


def must_wait(tick: Tick) -> bool:
    """Let spares take the places of nodes that should not train; return whether a checkpoint is written for that.

    Only once all ranks are gone: those of a node that is no member any more are not waited for.
    """
    places = _places(tick)
    if not places or tick.record.HasField("resize"):  # the nodes change already, or have just changed back
        return False
    members = [places.get(name, name) for name in tick.record.nodes]
    now, then = new_generation.choose(tick), new_generation.choose(_with_members(tick, members))
    if now is None:
        return False
    if then is not None and then.step >= now.step:
        with tick.edit_record() as record:
            # If they do not train, the nodes before them do again: see missing_nodes.fall_back().
            record.resize.generation, record.resize.fewer[:] = record.generation, list(record.nodes)
            record.nodes[:] = members
        for name, spare in places.items():
            incidents.add_line_to_open(tick, f"node {spare} takes the place of {name}, which should not train")
        return False
    if _is_writing(tick, now):
        return True
    say(tick, f"node {min(places)} should not train, and trains again: with a spare in its place steps would be lost")
    return False


def _places(tick: Tick) -> dict[str, str]:
    """Return which spare may take the place of which member."""
    unfit = [name for name in tick.record.nodes if quarantine.is_last_choice(tick, name)]
    spares = missing_nodes.spares(tick, tick.record.nodes)
    good = [name for name in spares if not quarantine.is_last_choice(tick, name)]
    return dict(zip(unfit, good, strict=False))


def _with_members(tick: Tick, members: list[str]) -> Tick:
    """Return a tick of a run with other members, to ask what its state would be."""
    record = store.CoordinatorState()
    record.CopyFrom(tick.record)
    record.nodes[:] = members
    return Tick(replace(tick.state, record=record), tick.now)


def _is_writing(tick: Tick, point: RestorePoint) -> bool:
    """Have the newest state in memory written as a checkpoint; return whether that may still succeed."""
    record, known = tick.record, tick.state.reported_once
    has_failed = record.HasField("failed_checkpoint") and record.failed_checkpoint == point.step
    # A checkpoint outlives this start, and must be of a good state.
    is_in_doubt = record.loss_counts.HasField("nonfinite_since") or record.HasField("roll_back")
    if point.source != store.SOURCE_MEMORY or point.history is not None or has_failed or is_in_doubt:
        return False
    what = f"the snapshots of step {point.step} are written as a checkpoint, so that a spare can start from it"
    if tick.now - known.get(what, tick.now) > WRITE_PATIENCE_S:
        return False
    if what not in known or tick.now - tick.state.sent_unix_s > RESEND_S:
        checkpoint_commands.persist_newest_snapshot(tick)
    say(tick, what)
    return True

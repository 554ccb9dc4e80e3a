"""Ranks that end by themselves while the evidence of a first death is gathered: a second fault, named with the first.

A verdict on a death is reached within milliseconds, so that a rank that failed at the same moment may not be reported
yet. Only ends that no other rank can have brought about count, and only for a moment: all others are consequences.

It also corrects where a stopped rank is, once its black box has been read.
"""

from holdfast_core import incidents
from holdfast_core.detectors.deaths import death
from holdfast_core.texts.render import write
from holdfast_core.tick import Tick
from holdfast_core.world import is_stopped
from holdfast_proto.v1 import store_pb2 as store

SIMULTANEOUS_S = 0.5
"""Longest time between two ends that count as simultaneous."""


def add_to_open(tick: Tick) -> None:
    """Add ranks that have failed by themselves to the verdict of the open incident, if that is a death."""
    incident = incidents.open_one(tick)
    if incident is None or incident.verdict.kind != store.VERDICT_KIND_DEAD_RANK or incident.verdict.death.awaited:
        return
    known = {end.rank for end in incident.verdict.death.ends}
    first_unix_s = min((tick.ranks[rank].exit.exited_unix_s for rank in known if rank in tick.ranks), default=0.0)
    failed = [
        number
        for number, rank in sorted(tick.ranks.items())
        if number not in known
        and rank.HasField("exit")
        and not death.is_clean(rank.exit)
        and death.speaks_for_itself(rank.exit)
        and rank.exit.exited_unix_s <= first_unix_s + SIMULTANEOUS_S
    ]
    stopped = [rank for rank in incident.verdict.death.stopped if _is_elsewhere(tick, rank)]
    if not failed and not stopped:
        return
    with incidents.edit(tick, incident) as edited:
        verdict = edited.verdict
        for number in failed:
            verdict.death.ends.append(death.end_of(number, tick.ranks[number].exit))
        for rank in verdict.death.stopped:
            if _is_elsewhere(tick, rank):
                rank.step, rank.phase = tick.ranks[rank.rank].progress.step, tick.ranks[rank.rank].progress.phase
        ended = [end.rank for end in verdict.death.ends]
        verdict.culprits[:] = [*ended, *(rank.rank for rank in verdict.death.stopped if rank.rank not in ended)]
        write(verdict)


def _is_elsewhere(tick: Tick, held: store.HeldRank) -> bool:
    """Whether a stopped rank is at another place than its last report said: its black box has been read since."""
    rank = tick.ranks.get(held.rank)
    return (
        rank is not None
        and is_stopped(rank)
        and rank.progress.step >= held.step
        and ((rank.progress.step, rank.progress.phase) != (held.step, held.phase))
    )

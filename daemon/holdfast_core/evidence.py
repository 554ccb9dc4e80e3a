"""Adds to a verdict what dumps and stacks show that were taken for it.

The wait-for graph only knows calls by their numbers; the ranks' recorders know their names. Each name goes to the side
of the rank that made the call: where ranks have met in different calls, one number has several names.
"""

from collections.abc import Iterator

from holdfast_core.diagnosis.wait_for_graph import COLLECTIVE, RECV, SEND
from holdfast_core.texts.render import write
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_UNNAMED = ("", COLLECTIVE, RECV, SEND)


def add(verdict: store.Verdict, *captured: store.EvidenceCaptured) -> None:
    """Name the calls of a verdict and what its ranks do, as far as ``captured`` shows it, and render its texts anew."""
    for one in captured:
        for call in one.pending:
            _name_call(verdict, call)
        for stack in one.stacks:
            _add_stack(verdict, stack)
        for place in one.places:
            _add_place(verdict, place)
    write(verdict)


def _name_call(verdict: store.Verdict, call: common.PendingCall) -> None:
    for place in _places_of(verdict, call.rank):
        if place.op in _UNNAMED and (place.group, place.seq) == (call.group, call.seq):
            place.op, place.sizes, place.dtypes = call.op, call.sizes, call.dtypes
    for edge in verdict.waits:
        if edge.op in _UNNAMED and (edge.waiter, edge.group, edge.seq) == (call.rank, call.group, call.seq):
            edge.op = call.op
    is_first = (verdict.group, verdict.seq) == (call.group, call.seq)
    if is_first and verdict.op in _UNNAMED and verdict.group and _is_in_first_place(verdict, call.rank):
        verdict.op = call.op


def _places_of(verdict: store.Verdict, rank: int) -> Iterator[store.CallPlace]:
    """Yield the calls of a verdict's detail in which a rank is."""
    yield from (held.missed for held in held_ranks(verdict) if rank in held.waiters)
    yield from (side.call for side in verdict.mismatch.sides if rank in side.ranks)
    if verdict.HasField("transport"):
        yield verdict.transport.call


def held_ranks(verdict: store.Verdict) -> Iterator[store.HeldRank]:
    """Yield the ranks that live and hold others up."""
    yield from (*verdict.hang.ranks, *verdict.death.stopped, *verdict.death.awaited)


def _is_in_first_place(verdict: store.Verdict, rank: int) -> bool:
    """Whether a rank can name the call of the verdict itself: in a mismatch only a rank that made it can."""
    if not verdict.HasField("mismatch"):
        return True
    sides = verdict.mismatch.sides
    return any(
        (side.call.group, side.call.seq) == (verdict.group, verdict.seq) and rank in side.ranks for side in sides[:1]
    ) or any(side.HasField("peer") and side.peer in verdict.culprits[:1] and rank in side.ranks for side in sides)


def _add_stack(verdict: store.Verdict, stack: store.StackSummary) -> None:
    for held in (*held_ranks(verdict), verdict.standstill.only, verdict.standstill.example):
        if held.rank == stack.rank and held.state == store.HELD_STATE_PRESENT:
            held.activity = held.activity or stack.activity
            if stack.HasField("blocked_on") and not held.HasField("blocked_on"):
                held.blocked_on.CopyFrom(stack.blocked_on)
            held.frame = held.frame or stack.frame
    for side in verdict.mismatch.sides:
        if side.ranks[0] == stack.rank:
            side.frame = side.frame or stack.frame
    if list(verdict.culprits[:1]) == [stack.rank] and (verdict.HasField("hang") or verdict.HasField("standstill")):
        verdict.activity = verdict.activity or stack.activity


def _add_place(verdict: store.Verdict, place: store.RankPlace) -> None:
    """Correct where a stopped rank is: its black box is more exact than its last report."""
    for held in held_ranks(verdict):
        if held.rank == place.rank and held.activity == common.ACTIVITY_STOPPED:
            held.step, held.phase = place.step, place.phase
    if verdict.HasField("hang") and list(verdict.culprits[:1]) == [place.rank]:
        verdict.step, verdict.phase = place.step, place.phase

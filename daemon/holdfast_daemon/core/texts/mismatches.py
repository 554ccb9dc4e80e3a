"""Ranks whose programs make different calls: both sides of it."""

from collections.abc import Callable, Mapping

from holdfast_daemon.core.naming import ranks_named
from holdfast_daemon.core.texts import places
from holdfast_proto.v1 import store_pb2 as store

_SIDES_SHOWN = 4


def mismatch(verdict: store.Verdict) -> str:
    """Return in one line what both sides do."""
    detail = verdict.mismatch
    message = _LINES[detail.form](detail)
    frame = next((side.frame for side in detail.sides if side.frame and set(side.ranks) & set(verdict.culprits)), "")
    return f"{message} (at {frame})" if frame else message


def sides(detail: store.MismatchDetail) -> list[str]:
    """Return one line for each of the first sides."""
    return [_side_line(side) for side in detail.sides[:_SIDES_SHOWN]]


def _different_calls(detail: store.MismatchDetail) -> str:
    met = [f"{ranks_named(side.ranks)} in {places.with_inputs(side.call)}" for side in detail.sides[:_SIDES_SHOWN]]
    where = places.numbered(detail.sides[0].call)
    return f"ranks have met in different calls: {where} finds {' and '.join(met)}"


def _circle(detail: store.MismatchDetail) -> str:
    everybody = [rank for side in detail.sides for rank in side.ranks]
    waits = ", ".join(
        f"{ranks_named(side.ranks)} for {side.peer} in {places.named(side.call)}"
        for side in detail.sides[:_SIDES_SHOWN]
    )
    more = ", ..." if len(detail.sides) > _SIDES_SHOWN else ""
    order = "their calls are in different orders, or one is missing"
    return f"{ranks_named(everybody)} wait for each other: {waits}{more}; {order}"


def _left_behind(detail: store.MismatchDetail) -> str:
    held = detail.sides[0]
    who = f"{ranks_named(held.ranks)} {'is' if len(held.ranks) == 1 else 'are'}"
    where = places.numbered(held.call)
    return f"{who} still in {where}, which all others have completed: it made another call there, or lost data"


def _sizes(detail: store.MismatchDetail) -> str:
    """Return who expected which size. The first side has named the call, the others were aborted in it."""
    others, aborted = detail.sides[0], detail.sides[1:]
    where = places.named(others.call)
    inputs = f", called with {others.call.sizes}" if others.call.sizes else ""
    met = "; ".join(_met(side) for side in aborted[:_SIDES_SHOWN])
    if len(others.ranks) > 1:
        return f"ranks have met in {where} with different sizes: {met}: one of them called with a wrong one"
    doubt = ": either may have called with a wrong size" if detail.either else ""
    return f"{ranks_named(others.ranks)} has sent more in {where}{inputs} than others expected: {met}{doubt}"


def _peer(detail: store.MismatchDetail) -> str:
    """Return who sends to whom, and who expects what: the first side has sent, the second waits."""
    sent, waits = detail.sides[0], detail.sides[1]
    sender, waiter = sent.ranks[0], waits.ranks[0]
    gone = f"rank {sender} has sent a message to rank {sent.peer} in {places.group(sent.call)} that it does not receive"
    missing = f"rank {waiter} waits for {places.named(waits.call)} from rank {waits.peer}"
    return f"{gone}, and {missing}, which does not send it: one of them names the wrong peer"


def _behind(detail: store.MismatchDetail) -> str:
    others, behind = detail.sides[0], detail.sides[1]
    calls = f"{behind.missed_calls} {'call' if behind.missed_calls == 1 else 'calls'} fewer"
    many = len(behind.ranks) > 1
    place = "have left training" if behind.left and many else "has left training" if behind.left else ""
    where = place or f"{'are' if many else 'is'} in step {behind.step}"
    group = places.group(others.call)
    return (
        f"{ranks_named(behind.ranks)} {where} after {calls} in {group} than {ranks_named(others.ranks)}"
        f" {'has' if len(others.ranks) == 1 else 'have'} made: a part of a step was left out there"
    )


def _met(side: store.MismatchSide) -> str:
    met = (
        "" if not side.HasField("got_bytes") else f": it expected {side.expected_bytes} bytes and got {side.got_bytes}"
    )
    return f"{ranks_named(side.ranks)} {'was' if len(side.ranks) == 1 else 'were'} aborted{met}"


def _side_line(side: store.MismatchSide) -> str:
    frame = f" (at {side.frame})" if side.frame else ""
    if side.HasField("got_bytes") or not side.call.op:
        return _met(side) + frame
    peer = f", with rank {side.peer}" if side.HasField("peer") else ""
    return f"{ranks_named(side.ranks)} in {places.with_inputs(side.call)}: {places.numbered(side.call)}{peer}{frame}"


_LINES: Mapping["store.MismatchForm", Callable[[store.MismatchDetail], str]] = {
    store.MISMATCH_FORM_DIFFERENT_CALLS: _different_calls,
    store.MISMATCH_FORM_CIRCLE: _circle,
    store.MISMATCH_FORM_LEFT_BEHIND: _left_behind,
    store.MISMATCH_FORM_SIZES: _sizes,
    store.MISMATCH_FORM_PEER: _peer,
    store.MISMATCH_FORM_BEHIND: _behind,
}

"""Ranks whose programs make different calls: both sides of it."""

from collections.abc import Callable, Iterable, Mapping

from holdfast_core.diagnosis.operations import operation
from holdfast_core.diagnosis.wait_for_graph import RECV
from holdfast_core.naming import ranks_named
from holdfast_core.texts import places
from holdfast_proto.v1 import store_pb2 as store

_SIDES_SHOWN = 4


def mismatch(verdict: store.Verdict) -> str:
    """Return in one line what both sides do."""
    detail = verdict.mismatch
    message = _LINES[detail.form](detail)
    frame = next((side.frame for side in detail.sides if side.frame and set(side.ranks) & set(verdict.culprits)), "")
    return f"{message} (at {frame})" if frame else message


def is_complete(detail: store.MismatchDetail) -> bool:
    """Return whether a detail has the sides that its form speaks of, and each side its ranks."""
    least = 1 if detail.form in (store.MISMATCH_FORM_CIRCLE, store.MISMATCH_FORM_LEFT_BEHIND) else 2
    is_whole = len(detail.sides) >= least and all(side.ranks for side in detail.sides)
    if detail.form == store.MISMATCH_FORM_GROUPS:
        is_whole = is_whole and all(side.members for side in detail.sides)
    if detail.form == store.MISMATCH_FORM_DIFFERENT_CALLS:
        is_whole = is_whole and bool(_named(detail))
    return detail.form in _LINES and is_whole


def sides(detail: store.MismatchDetail) -> list[str]:
    """Return one line for each of the first sides."""
    line = _SIDE_LINES.get(detail.form, _side_line)
    return [line(side) + _at(side) for side in detail.sides[:_SIDES_SHOWN]]


def _different_calls(detail: store.MismatchDetail) -> str:
    named, aborted = _named(detail), [side for side in detail.sides if side.HasField("got_bytes")]
    met = [f"{ranks_named(side.ranks)} in {places.with_inputs(side.call)}" for side in named[:_SIDES_SHOWN]]
    where = places.numbered(detail.sides[0].call)
    ends = "".join(f"; {_met(side)}{_like(side, named)}" for side in aborted[:_SIDES_SHOWN])
    return f"ranks have met in different calls: {where} finds {' and '.join(met)}{ends}"


def _named(detail: store.MismatchDetail) -> list[store.MismatchSide]:
    """Return the sides that have named their calls themselves; the others were aborted in theirs."""
    return [side for side in detail.sides if not side.HasField("got_bytes")]


def _like(side: store.MismatchSide, named: Iterable[store.MismatchSide]) -> str:
    """Return who has made the same call as an aborted rank."""
    ranks = [rank for one in named if one.call == side.call for rank in one.ranks]
    return f", so that it called like {ranks_named(ranks)}" if ranks else ""


def _circle(detail: store.MismatchDetail) -> str:
    everybody = [rank for side in detail.sides for rank in side.ranks]
    waits = ", ".join(_wait(side) for side in detail.sides[:_SIDES_SHOWN])
    more = ", ..." if len(detail.sides) > _SIDES_SHOWN else ""
    all_receive = all(operation(side.call.op).startswith(RECV) for side in detail.sides)
    why = "a message was not sent" if all_receive else "their calls are in different orders, or one is missing"
    return f"{ranks_named(everybody)} wait for each other: {waits}{more}: {why}"


def _wait(side: store.MismatchSide) -> str:
    return f"{ranks_named(side.ranks)} for rank {side.peer} in {places.named(side.call)}"


def _wait_line(side: store.MismatchSide) -> str:
    return f"{ranks_named(side.ranks)} waits for rank {side.peer} in {places.named(side.call)}"


def _left_behind(detail: store.MismatchDetail) -> str:
    held = detail.sides[0]
    verb, they = ("is", "it") if len(held.ranks) == 1 else ("are", "they")
    who = f"{ranks_named(held.ranks)} {verb} still in {places.numbered(held.call)}"
    return f"{who}, which all others have completed: {they} made another call there, or lost data"


def _sizes(detail: store.MismatchDetail) -> str:
    """Return who expected which size. The first side has named the call, the others were aborted in it."""
    others, aborted = detail.sides[0], detail.sides[1:]
    inputs = f" ({others.call.sizes})" if others.call.sizes else ""
    where = f"{places.named(others.call)}{inputs}"
    met = ", ".join(_met(side) for side in aborted[:_SIDES_SHOWN])
    if len(others.ranks) > 1 and len(aborted) == 1:
        odd = ranks_named(aborted[0].ranks)
        doubt = f"{odd} made another call there, or called with a wrong size"
        return f"{ranks_named(others.ranks)} have met {odd} in {where} with another size: {met}; {doubt}"
    if len(others.ranks) > 1:
        return f"ranks have met in {where} with different sizes: {met}; one of them called with a wrong one"
    doubt = "; either may have called with a wrong size" if detail.either else ""
    return f"{ranks_named(others.ranks)} has sent more in {where} than expected: {met}{doubt}"


def _peer(detail: store.MismatchDetail) -> str:
    """Return who sends to whom, and who expects what: the first side has sent, the second waits."""
    sent, waits = detail.sides[0], detail.sides[1]
    sender, waiter = sent.ranks[0], waits.ranks[0]
    group = places.group(sent.call)
    return (
        f"rank {sender} has sent message {sent.call.seq} of {group} to rank {sent.peer}, which posts no receive for it,"
        f" and rank {waiter} waits for message {waits.call.seq} from rank {waits.peer}, which does not send it: one of"
        " them may name the wrong peer"
    )


def _behind(detail: store.MismatchDetail) -> str:
    """Return who left out calls: the first side are the others, which wait."""
    others, behind = detail.sides[0], detail.sides[1]
    who, many = ranks_named(behind.ranks), len(behind.ranks) > 1
    if behind.left:
        # The others may have more calls to make in the step in which they wait.
        calls = f"at least {behind.missed_calls} {'call' if behind.missed_calls == 1 else 'calls'} fewer"
        wait = f"{ranks_named(others.ranks)} {'waits' if len(others.ranks) == 1 else 'wait'}"
        return (
            f"{who} {'have' if many else 'has'} left training after step {behind.step} with {calls} in"
            f" {places.group(others.call)} than the others, and {wait} in {places.named(others.call)}: a part of a step"
            " was left out there, or made twice here"
        )
    verb, rest = "are" if many else "is", ranks_named(others.ranks)
    if behind.past:
        return (
            f"{who} {verb} past {places.named(others.call)} and in step {behind.step}, and {rest}"
            f" {'is' if len(others.ranks) == 1 else 'are'} still in it in step {others.step}: a part of a step was left"
            " out by some, or made twice by others"
        )
    return (
        f"{who} {verb} in {places.named(others.call)} in step {behind.step}, and {rest} in step {others.step}: a part"
        " of a step was left out by some, or made twice by others"
    )


def _groups(detail: store.MismatchDetail) -> str:
    made = ", ".join(map(_made, detail.sides[:_SIDES_SHOWN]))
    rule = "every rank has to make every group, in one order"
    return f"ranks have made different groups under number {detail.sides[0].call.group}: {made}; {rule}"


def _made(side: store.MismatchSide) -> str:
    return f"{ranks_named(side.ranks)} one of {ranks_named(side.members)}"


def _made_line(side: store.MismatchSide) -> str:
    return f"{ranks_named(side.ranks)} made group {side.call.group} of {ranks_named(side.members)}"


def _met(side: store.MismatchSide) -> str:
    if not side.HasField("got_bytes"):
        return f"{ranks_named(side.ranks)} {'was' if len(side.ranks) == 1 else 'were'} aborted"
    return f"{ranks_named(side.ranks)} expected {side.expected_bytes} bytes and got {side.got_bytes}"


def _side_line(side: store.MismatchSide) -> str:
    if side.HasField("got_bytes") or not side.call.op:
        return _met(side)
    return f"{ranks_named(side.ranks)} in {places.with_inputs(side.call)}: {places.numbered(side.call)}"


def _message_line(side: store.MismatchSide) -> str:
    message = f"message {side.call.seq} of {places.group(side.call)}"
    if operation(side.call.op).startswith(RECV):
        return f"{ranks_named(side.ranks)} waits for {message} from rank {side.peer}"
    return f"{ranks_named(side.ranks)} has sent {message} to rank {side.peer}"


def _step_line(side: store.MismatchSide) -> str:
    who = ranks_named(side.ranks)
    if side.left:
        return f"{who} {'has' if len(side.ranks) == 1 else 'have'} left training after step {side.step}"
    if side.past:
        return f"{who} {'is' if len(side.ranks) == 1 else 'are'} past {places.numbered(side.call)}, step {side.step}"
    return f"{who} in {places.with_inputs(side.call)}: {places.numbered(side.call)}, step {side.step}"


def _at(side: store.MismatchSide) -> str:
    return f", at {side.frame}" if side.frame else ""


_LINES: Mapping["store.MismatchForm", Callable[[store.MismatchDetail], str]] = {
    store.MISMATCH_FORM_DIFFERENT_CALLS: _different_calls,
    store.MISMATCH_FORM_CIRCLE: _circle,
    store.MISMATCH_FORM_LEFT_BEHIND: _left_behind,
    store.MISMATCH_FORM_SIZES: _sizes,
    store.MISMATCH_FORM_PEER: _peer,
    store.MISMATCH_FORM_BEHIND: _behind,
    store.MISMATCH_FORM_GROUPS: _groups,
}

_SIDE_LINES: Mapping["store.MismatchForm", Callable[[store.MismatchSide], str]] = {
    store.MISMATCH_FORM_CIRCLE: _wait_line,
    store.MISMATCH_FORM_PEER: _message_line,
    store.MISMATCH_FORM_BEHIND: _step_line,
    store.MISMATCH_FORM_GROUPS: _made_line,
}

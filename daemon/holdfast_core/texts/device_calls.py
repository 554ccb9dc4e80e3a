"""Hangs in calls on devices, of a run or of a folder of dumps: what happened, why it is said, what to do next."""

from collections.abc import Iterable, Iterator, Sequence

from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Diagnosis
from holdfast_core.diagnosis.devices.contradictions import Contradiction
from holdfast_core.diagnosis.wait_for_graph import SharedCall
from holdfast_proto.v1 import store_pb2 as store

_SHOWN = 8

_NEXT = {
    CauseKind.MISSING_RANK: "look at the stack and the log of {ranks}: what keeps the host from this call",
    CauseKind.DEAD_RANK: "look at the log of {ranks} for the reason of its end",
    CauseKind.MISMATCHED_CALL: "compare the code that leads {suspects} to these calls: a branch differs between them",
    CauseKind.OPPOSITE_ORDER: "compare the order of the calls of {ranks}, and look for one that was left out",
    CauseKind.STUCK_DEVICE: "look at what runs on the device of {ranks}: its queue does not come to this call",
    CauseKind.INSIDE_CALL: "take a native stack of {ranks} (py-spy dump --native), and read NCCL's log of its node",
    CauseKind.GPU_OR_NETWORK: "look at the kernel log (Xid), the network and NCCL's log of the nodes of {parties}",
    CauseKind.UNKNOWN: "take the stacks of {suspects} (py-spy dump --native)",
    CauseKind.MOVING: "if the job stands still now, take more dumps and compare them with the newer of these two",
    CauseKind.NOTHING_PENDING: "take the stacks of all ranks: the recorders follow no call that holds the job up",
}


_NO_RANK = "and it does not complete: a GPU or the network, no rank is to blame"
_SENTENCES = {
    store.DEVICE_CAUSE_STUCK_DEVICE: (
        "the device of {named} does not come to {call}, which those of others have reached"
    ),
    store.DEVICE_CAUSE_HELD_ALONE: "{named} alone still holds {call}: its device, its stream or its watchdog is stuck",
    store.DEVICE_CAUSE_INSIDE_CALL: "the host of {named} does not return from making {call}",
    store.DEVICE_CAUSE_OPPOSITE_ORDER: (
        "{named}{others} wait for each other: calls come in different orders, or one was left out"
    ),
    store.DEVICE_CAUSE_DIFFERENT_SIZES: "{named} give one message different sizes: {call}",
    store.DEVICE_CAUSE_PENDING_TRANSFER: f"both sides have made {{call}}, {_NO_RANK}",
    store.DEVICE_CAUSE_UNKNOWN: "the recorders do not show who holds up {call}",
}

BLIND = "ends calls when they are made, not when they complete, so it cannot show who hangs"
"""What there is to say about such a recorder."""


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ``rank 3``, ``ranks 1 and 2``, or of many the first ones and how many more."""
    numbers = sorted(set(ranks))
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > _SHOWN:
        return f"ranks {', '.join(map(str, numbers[:_SHOWN]))} and {len(numbers) - _SHOWN} more"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def call_text(shared: SharedCall) -> str:
    """Return ``call 42 (all_reduce) of group 0``."""
    return _call_text(shared.group[0], shared.seq, shared.op)


def _call_text(group: str, seq: int, op: str) -> str:
    if not seq:
        return f"{op} of group {group} (by ranks of the group)"
    return f"call {seq} ({op}) of group {group}" if op else f"call {seq} of group {group}"


def device_call(verdict: store.Verdict) -> str:
    """Return what happened, in one line, of a verdict on a cause that only devices know."""
    shown = verdict.device_call
    call = _call_text(verdict.group, verdict.seq, verdict.op) if verdict.group else "a call"
    return _sentence(shown.cause, shown.ranks, shown.suspects, call) or shown.what


def verdict_of(cause: Cause) -> str:  # noqa: PLR0911 - one sentence for each kind
    """Return what happened, in one line."""
    named, shared = ranks_text(cause.ranks) if cause.ranks else "", cause.call
    call = call_text(shared) if shared is not None else "a call"
    match cause.kind:
        case CauseKind.MISSING_RANK:
            have = "has" if len(cause.ranks) == 1 else "have"
            if shared is None:
                return f"{named} {have} not come to the set-up of a process group in which others wait"
            side = "" if shared.seq else "the other side of "
            return f"{named} {have} not made {side}{call}, in which {_waiters(shared)}"
        case CauseKind.DEAD_RANK:
            waiting = f"in {call} {_waiters(shared)}" if shared is not None else "no recorder shows who waits for that"
            return f"{named} {'is' if len(cause.ranks) == 1 else 'are'} dead, and {waiting}"
        case CauseKind.MOVING:
            return f"{ranks_text(cause.suspects)} moved between the two sets of dumps, which therefore show no hang"
        case CauseKind.NOTHING_PENDING:
            return "no recorder shows for sure a call that others wait in"
    if only_devices := _sentence(cause.device_cause, cause.named, cause.suspects, call):
        return only_devices
    if cause.kind == CauseKind.GPU_OR_NETWORK:
        return f"all members have made {call}, {_NO_RANK}"
    number, group = (shared.seq, shared.group[0]) if shared is not None else (0, "?")
    return f"ranks made different calls under number {number} of group {group}"


def _sentence(cause: "store.DeviceCause", ranks: Sequence[int], suspects: Iterable[int], call: str) -> str:
    """Return what happened by a cause that only devices know; nothing for any other."""
    named = ranks_text(ranks) if ranks else "a rank"
    others = " and others" if len(ranks) == 1 or set(suspects).difference(ranks) else ""
    return _SENTENCES.get(cause, "").format(named=named, others=others, call=call)


def reasons_of(cause: Cause, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what a verdict rests on, one line each."""
    shared = cause.call
    if not diagnosis.has_calls and cause.ranks:
        yield "only the counters of groups were read, in which collectives and messages share one number"
    if cause.kind == CauseKind.MISSING_RANK:
        for rank in cause.ranks[:_SHOWN]:
            yield _own_place(rank, shared, diagnosis)
    if shared is not None:
        for signature, members in shared.sides:
            yield f"{ranks_text(members)} made {signature}"
        if cause.kind in (CauseKind.UNKNOWN, CauseKind.OPPOSITE_ORDER):
            yield from _waits_in(shared)
        if shared.is_held_alone:
            others = [rank for rank in shared.group[1] if rank not in shared.waiters]
            yield f"{ranks_text(others)} completed it, which nobody can before all have taken part"
        elif cause.kind in (CauseKind.GPU_OR_NETWORK, CauseKind.STUCK_DEVICE, CauseKind.INSIDE_CALL):
            yield f"{ranks_text(shared.parties)} have made it, and no older call is pending on them"
    if _is_guessed(cause) and shared is not None:
        name, members = shared.group
        yield f"{ranks_text(members)} made it, and no dump says whether group {name} has other members"
    if cause.kind in (CauseKind.NOTHING_PENDING, CauseKind.UNKNOWN):
        yield from _what_is_missing(cause, diagnosis)


def _what_is_missing(cause: Cause, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield why the recorders do not show more."""
    blind = [rank for rank, calls in diagnosis.ranks.items() if calls.ends_at_issue]
    if cause.kind == CauseKind.NOTHING_PENDING and blind:
        yield f"the recorder of {ranks_text(blind)} {BLIND}"
    doubtful = [rank for rank, one in diagnosis.ranks.items() if not one.pending and not one.front_is_certain]
    if cause.kind == CauseKind.NOTHING_PENDING and doubtful:
        yield f"{ranks_text(doubtful)} may have a transfer pending: nothing in the dumps shows whether it is over"
    odd = {one.rank for one in diagnosis.contradictions}
    if odd:
        yield f"the dumps of {ranks_text(odd)} are left out, as others contradict them: take all again, at one time"
    unread = [rank for rank in cause.suspects if rank in diagnosis.unread]
    read = [rank for rank in cause.suspects if rank not in diagnosis.unread and rank not in odd]
    if unread:
        have = "has" if len(unread) == 1 else "have"
        yield f"{ranks_text(unread)} {have} no readable dump, and that alone proves nothing"
    if read:
        yield f"{ranks_text(read)} may be the cause, or wait for something that recorders do not show"


def contradiction_text(one: Contradiction) -> str:
    """Return why the dump of a rank does not fit to those of others, in one line."""
    call = f"call {one.seq} of group {one.group[0]}"
    if one.is_made:
        why = "its dump is older, or the end of the call did not reach its device"
        return f"{ranks_text(one.others)} completed {call}, and rank {one.rank} has not: {why}"
    return f"{ranks_text(one.others)} completed {call}, and rank {one.rank} has not made it: its dump is older"


def next_step(cause: Cause) -> str:
    """Return what to do next, in one line."""
    if _is_guessed(cause):
        return "add the dumps of all ranks, or say how many ranks there are"
    members = ranks_text(cause.call.group[1]) if cause.call is not None else "all ranks"
    suspects = cause.suspects or cause.ranks
    return _NEXT[cause.kind].format(
        ranks=ranks_text(cause.ranks) if cause.ranks else "the culprit",
        suspects=ranks_text(suspects) if suspects else members,
        members=members,
        parties=ranks_text(cause.call.parties) if cause.call is not None else "all ranks",
    )


def _is_guessed(cause: Cause) -> bool:
    """Return whether nothing but the members of the group is in doubt."""
    return cause.kind == CauseKind.UNKNOWN and not cause.suspects and cause.call is not None and cause.call.is_complete


def _waiters(shared: SharedCall) -> str:
    return f"{ranks_text(shared.waiters)} {'waits' if len(shared.waiters) == 1 else 'wait'}"


def _own_place(rank: int, shared: SharedCall | None, diagnosis: Diagnosis) -> str:
    calls = diagnosis.ranks.get(rank)
    if calls is None or shared is None or shared.group not in calls.arrived:
        return f"rank {rank} has no call of its own pending"
    newest = calls.arrived[shared.group]
    made = f"its newest call there is {newest}" if newest else "it has made none there"
    if not shared.seq:
        made = "it has not made the other side of this transfer"
    return f"rank {rank} has no call of its own pending, and {made}"


def _waits_in(shared: SharedCall) -> Iterator[str]:
    for ranks, why in (
        (shared.missing, "not made it"),
        (shared.unclear, "perhaps not made it"),
        (shared.behind, "made it after a call that is still pending"),
    ):
        if ranks:
            have = "has" if len(ranks) == 1 else "have"
            yield f"in {call_text(shared)} {_waiters(shared)}; {ranks_text(ranks)} {have} {why}"

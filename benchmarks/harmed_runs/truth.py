"""The right verdict for each fault. No other place defines it."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.detection_ranks.call_log import LoggedCall, LoggedRank
from benchmarks.harmed_runs.fault_cases import DEATHS, DUPLICATE, ORDER, STUCK, Case
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

Kind = store.VerdictKind

RIGHT_KINDS: Mapping[str, tuple["Kind", ...]] = {
    **dict.fromkeys(DEATHS, (store.VERDICT_KIND_DEAD_RANK,)),
    **dict.fromkeys(STUCK, (store.VERDICT_KIND_HUNG_COLLECTIVE,)),
    # Whatever the mismatch led to: an abort of gloo, a rank that raised, a wait of all others.
    **dict.fromkeys(ORDER, (store.VERDICT_KIND_MISMATCHED_ORDER,)),
    # The sender believes that it has sent, so both sides have arrived: the transport has lost the message.
    "lost-message": (store.VERDICT_KIND_TRANSPORT, store.VERDICT_KIND_HUNG_COLLECTIVE),
    "data-stall": (store.VERDICT_KIND_DATA_STALL,),
    "slow": (store.VERDICT_KIND_STRAGGLER,),
    "nan-gradient": (store.VERDICT_KIND_NON_FINITE,),
    "bit-flip": (store.VERDICT_KIND_SILENT_CORRUPTION,),
    DUPLICATE: (store.VERDICT_KIND_DUPLICATE_SAMPLES,),
    "clock-jump": (),
}

SYMPTOMS: Mapping[str, tuple["Kind", ...]] = {
    # A flipped exponent makes a weight so large that the loss or the gradient shows the flip in the same step.
    "bit-flip": (
        store.VERDICT_KIND_NON_FINITE,
        store.VERDICT_KIND_LOSS_SPIKE,
        store.VERDICT_KIND_GRADIENT_EXPLOSION,
    ),
}
"""Kinds that may be reported before the verdict that counts, because they are true as well."""

ACTIVITIES: Mapping[str, "common.Activity"] = {
    "stop": common.ACTIVITY_STOPPED,
    "infinite-loop": common.ACTIVITY_USER_CODE,
    "gil-held": common.ACTIVITY_GIL_HELD,
    "deadlock": common.ACTIVITY_LOCK,
    "frozen-disk": common.ACTIVITY_PIPE,
    "data-stall": common.ACTIVITY_DATA,
}

_RECORDED = {
    "all_reduce": ("gloo:all_reduce", "gloo:allreduce"),
    # Gloo carries some of these out as an all-reduce, and its recorder names what it carries out.
    "reduce_scatter": (
        "gloo:reduce_scatter",
        "gloo:_reduce_scatter_base",
        "gloo:reduce_scatter_tensor_coalesced",
        "gloo:all_reduce",
        "gloo:allreduce",
    ),
    "all_gather": ("gloo:all_gather", "gloo:_allgather_base", "gloo:_all_gather_base"),
    "all_to_all": ("gloo:all_to_all",),
    "send": ("send",),
    "recv": ("recv",),
}
"""Operation -> its names in torch's recorder, or in our own recorder of messages."""


@dataclass(frozen=True)
class Judgement:
    """Which parts of a verdict are right. None: this fault, or this kind of verdict, has no such part."""

    kind: bool
    rank: bool | None
    call: bool | None
    activity: bool | None


def right_kinds(case: Case) -> tuple["Kind", ...]:
    """Return the right kinds of verdicts."""
    # A rank that computes in its data phase, or waits there for a lock or a disk, is a data loader without an answer.
    return (store.VERDICT_KIND_DATA_STALL,) if case.waits_for_data else RIGHT_KINDS[case.fault]


def judge(case: Case, verdict: store.Verdict | None, ranks: Mapping[int, LoggedRank]) -> Judgement:
    """Compare a verdict with the injected fault. ``ranks`` has their newest log entries, if they keep a log."""
    if case.fault == "clock-jump":
        return Judgement(verdict is None, None, None, None)
    if verdict is None:
        return Judgement(False, False, False if _has_call(case) and ranks else None, None)
    kind = verdict.kind in right_kinds(case)
    activity = ACTIVITIES.get(case.fault)
    if case.waits_for_data:
        activity = common.ACTIVITY_DATA
    return Judgement(
        kind=kind,
        rank=_is_right_rank(case, verdict),
        call=_is_right_call(case, verdict, ranks) if ranks and _names_call(case, verdict) else None,
        activity=None if activity is None else verdict.activity == activity,
    )


def _is_right_rank(case: Case, verdict: store.Verdict) -> bool | None:
    if verdict.kind == store.VERDICT_KIND_TRANSPORT and case.fault == "lost-message":
        # The message is lost between two ranks, and neither of them is to blame. Other forms name no sender.
        is_message = verdict.transport.form == store.TRANSPORT_FORM_MESSAGE
        return is_message and case.rank in (verdict.transport.sender, verdict.transport.receiver)
    contradictions = (store.VERDICT_KIND_MISMATCHED_ORDER, store.VERDICT_KIND_SILENT_CORRUPTION)
    if verdict.kind in contradictions and len(verdict.culprits) == 2:
        # Two ranks contradict each other, and no third one is in their call or has a copy: either may be wrong.
        return case.rank in verdict.culprits
    return bool(verdict.culprits) and verdict.culprits[0] == case.rank


def _has_call(case: Case) -> bool:
    return case.fault in (*STUCK, *ORDER, "lost-message", "data-stall")


def _names_call(case: Case, verdict: store.Verdict) -> bool:
    return _has_call(case) and verdict.kind != store.VERDICT_KIND_DEAD_RANK


def _is_right_call(case: Case, verdict: store.Verdict, ranks: Mapping[int, LoggedRank]) -> bool:
    """Return whether ranks hang in the call that the verdict names, and wait for the culprit there."""
    of_order = case.fault not in (*STUCK, "data-stall")
    waiting = (
        call
        for rank, logged in ranks.items()
        for call in logged.calls
        if of_order or (rank != case.rank and case.rank in call.members)
    )
    if case.fault == "wrong-order":
        # The rank does not log the call that it makes too early. The log has the other call of the circle.
        culprits = set(verdict.culprits)
        circle = {edge.group for edge in verdict.waits if {edge.waiter, edge.awaited} <= culprits}
        return any(call.group in circle | {verdict.group} for call in waiting)
    # A call that was left out or doubled shifts the numbers of its rank.
    return any(_is_same(call, verdict, whatever_seq=of_order) for call in waiting)


def _is_same(call: LoggedCall, verdict: store.Verdict, *, whatever_seq: bool) -> bool:
    return (
        call.group == verdict.group and (whatever_seq or call.seq == verdict.seq) and verdict.op in _RECORDED[call.op]
    )

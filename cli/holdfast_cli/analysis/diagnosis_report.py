"""The diagnosis of a folder of dumps, as lines for people and as one object for scripts."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from holdfast_agent.evidence.recorder_dump import printable
from holdfast_cli.analysis.dump_folder import Dumps
from holdfast_cli.analysis.host_place import place_of
from holdfast_cli.analysis.stack_text import main_thread
from holdfast_core.diagnosis.devices.causes import Cause, CauseKind, Confidence, Diagnosis, Evidence, Place, Wait
from holdfast_core.diagnosis.devices.diagnosis import diagnose
from holdfast_core.texts.device_calls import (
    BLIND,
    call_text,
    contradiction_text,
    next_step,
    ranks_text,
    reasons_of,
    verdict_of,
)
from holdfast_proto.member_runs import members_of
from holdfast_proto.v1.recorder_pb2 import CALL_STATE_COMPLETED, RecorderDump

_WORLD = "0"
_QUIET_S = 10.0
"""Least time between the newest call and the dumps after which they show a job that stands still."""
_WAITS_SHOWN = 20
_WAITS_KEPT = 4096


def diagnose_dumps(
    found: Dumps,
    *,
    dead: frozenset[int] = frozenset(),
    world_size: int | None = None,
    earlier: Mapping[int, RecorderDump] | None = None,
) -> Diagnosis:
    """Return the diagnosis of a folder.

    ``world_size``: None takes the ranks that dumps and groups name. ``earlier``: dumps of some time before, by rank.
    """
    before = earlier or {}
    evidence = {
        rank: Evidence(
            found.dumps.get(rank),
            place=place_of(found.stacks.get(rank, "")),
            is_dead=rank in dead,
            earlier=before.get(rank),
        )
        for rank in sorted({*found.dumps, *found.stacks, *dead})
    }
    size = world_size or max(named_ranks(found, dead)) + 1
    diagnosis = diagnose(evidence, size, is_world_known=world_size is not None)
    if before or not was_busy(found):
        return diagnosis
    # In a job that runs, some rank is always a call behind the others.
    unsure = tuple(replace(cause, confidence=Confidence.LOW) for cause in diagnosis.causes)
    return replace(diagnosis, causes=unsure)


def was_busy(found: Dumps) -> bool:
    """Return whether ranks made calls until just before the dumps, as far as the files show when they were written."""
    newest_ns = max((call.created_ns for dump in found.dumps.values() for call in dump.calls), default=0)
    return bool(newest_ns) and 0 <= max(found.written_ns, default=0) - newest_ns < _QUIET_S * 1e9


def world_of(found: Dumps) -> tuple[int, ...]:
    """Return the members of the group of all ranks, as a dump names them; empty if none does."""
    groups = (group for dump in found.dumps.values() for group in dump.groups)
    return next((members_of(group.member_runs) for group in groups if group.name == _WORLD and group.member_runs), ())


def named_ranks(found: Dumps, dead: Collection[int] = ()) -> set[int]:
    """Return the ranks that files, groups and the command line name."""
    groups = {tuple(group.member_runs) for dump in found.dumps.values() for group in dump.groups}
    return {*found.dumps, *found.stacks, *dead}.union(*map(members_of, groups))


def as_object(found: Dumps, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis for scripts. The first cause stands for all in kind, group, op, seq and confidence."""
    causes = diagnosis.causes or (nothing_pending(),)
    first = causes[0]
    shared = first.call
    return {
        "kind": first.kind.value,
        "culprits": list(diagnosis.culprits),
        "group": shared.group[0] if shared is not None else None,
        "op": (shared.op or None) if shared is not None else None,
        "seq": (shared.seq or None) if shared is not None else None,
        "confidence": first.confidence.value,
        "message": verdict_of(first),
        "next": next_of(first, found),
        "suspects": list(first.suspects),
        "causes": [_cause(cause, found, diagnosis) for cause in causes],
        "waits": [_wait(wait) for wait in diagnosis.waits[:_WAITS_KEPT]],
        "dumps": len(found.dumps),
        "ranks_without_dump": list(diagnosis.unread),
        "contradictions": [{"rank": one.rank, "why": contradiction_text(one)} for one in diagnosis.contradictions],
        "bad_entries": sum(dump.bad_entries for dump in found.dumps.values()),
        "refused": found.refused,
    }


def as_lines(found: Dumps, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the diagnosis for people. A dump may hold any text, so nothing of it steers a terminal."""
    yield from map(printable, _lines(found, diagnosis))


def _lines(found: Dumps, diagnosis: Diagnosis) -> Iterator[str]:
    for cause in diagnosis.causes or (nothing_pending(),):
        yield f"{verdict_of(cause)} (confidence: {cause.confidence.value})"
        for reason in (*reasons_of(cause, diagnosis), *stack_reasons(cause, found)):
            yield f"  why: {reason}"
        for rank in cause.ranks[:_WAITS_SHOWN]:
            if frame := _newest_frame(rank, diagnosis):
                yield f"  rank {rank} made its newest call at {frame}"
        yield f"  next: {next_of(cause, found)}"
    yield from _basis(found, diagnosis)
    shown = list(_wait_lines(diagnosis.waits))
    if shown:
        yield "who waits for whom:"
        yield from shown[:_WAITS_SHOWN]
        if len(shown) > _WAITS_SHOWN:
            yield f"  and {len(shown) - _WAITS_SHOWN} more: --json has all"


def nothing_pending() -> Cause:
    """Return the cause of dumps in which nobody waits."""
    return Cause(CauseKind.NOTHING_PENDING, (), None, Confidence.LOW)


def _cause(cause: Cause, found: Dumps, diagnosis: Diagnosis) -> dict[str, Any]:
    shared = cause.call
    return {
        "kind": cause.kind.value,
        "ranks": list(cause.ranks),
        "suspects": list(cause.suspects),
        "group": shared.group[0] if shared is not None else None,
        "members": list(shared.group[1]) if shared is not None else [],
        "op": (shared.op or None) if shared is not None else None,
        "seq": (shared.seq or None) if shared is not None else None,
        "sides": [{"call": call, "ranks": list(ranks)} for call, ranks in shared.sides] if shared is not None else [],
        "confidence": cause.confidence.value,
        "message": verdict_of(cause),
        "why": [*reasons_of(cause, diagnosis), *stack_reasons(cause, found)],
        "next": next_of(cause, found),
    }


def _wait(wait: Wait) -> dict[str, Any]:
    return {
        "rank": wait.rank,
        "awaited": wait.awaited,
        "group": wait.call.group[0],
        "op": wait.call.op or None,
        "seq": wait.call.seq or None,
        "certain": wait.is_certain,
    }


def _wait_lines(waits: tuple[Wait, ...]) -> Iterator[str]:
    by_call: dict[tuple[int, bool], list[Wait]] = {}
    for wait in waits:
        by_call.setdefault((id(wait.call), wait.is_certain), []).append(wait)
    for (_, is_certain), group in by_call.items():
        waiting, awaited = ranks_text(wait.rank for wait in group), ranks_text(wait.awaited for wait in group)
        perhaps = "" if is_certain else "perhaps "
        yield f"  {waiting} in {call_text(group[0].call)}: {perhaps}for {awaited}"


def _basis(found: Dumps, diagnosis: Diagnosis) -> Iterator[str]:
    dumps = found.dumps.values()
    versions = ", ".join(sorted({dump.version or "without version" for dump in dumps}))
    parts = [f"{len(found.dumps)} dump{'s' if len(found.dumps) > 1 else ''} (format {versions})"]
    if diagnosis.unread:
        parts.append(f"no readable dump of {ranks_text(diagnosis.unread)}")
    parts += _forms(dumps)
    if not any(calls.knows_started for calls in diagnosis.ranks.values()):
        parts.append("no times of the devices (TORCH_NCCL_ENABLE_TIMING=1 records them)")
    if found.stacks:
        parts.append(f"stacks of {ranks_text(found.stacks)}")
    if any(calls.hides_transfers for calls in diagnosis.ranks.values()):
        parts.append("perhaps not all pending point-to-point calls: the recorders of gloo and nccl2 leave them out")
    if blind := [rank for rank, calls in diagnosis.ranks.items() if calls.ends_at_issue]:
        parts.append(f"a recorder of {ranks_text(blind)} that {BLIND}")
    if was_busy(found):
        parts.append(
            f"calls until less than {_QUIET_S:g} s before the dumps: with --earlier it shows whether the job runs"
        )
    if bad := sum(dump.bad_entries for dump in dumps):
        parts.append(f"{bad} {'entry' if bad == 1 else 'entries'} without sense left out")
    yield f"based on: {'; '.join(parts)}"
    for one in diagnosis.contradictions[:_WAITS_SHOWN]:
        yield f"  left out the dump of rank {one.rank}: {contradiction_text(one)}"
    for refused in found.refused[:_WAITS_SHOWN]:
        yield f"  left out {refused}"
    if len(found.refused) > _WAITS_SHOWN:
        yield f"  left out {len(found.refused) - _WAITS_SHOWN} more: --json has all"


def _forms(dumps: Collection[RecorderDump]) -> Iterator[str]:
    """Yield what some of the dumps leave out."""
    wrapped = [dump for dump in dumps if dump.has_wrapped and not dump.is_partial]
    if full := sum(_shows_done_calls(dump) for dump in wrapped):
        yield f"{full} without the oldest calls: the ring is full"
    if unclear := len(wrapped) - full:
        yield f"{unclear} without the oldest calls: the ring is full, or only pending calls were dumped"
    if partial := sum(dump.is_partial for dump in dumps):
        yield f"{partial} with pending calls only"
    if bare := sum(not dump.has_calls for dump in dumps):
        yield f"{bare} without any call"


def _shows_done_calls(dump: RecorderDump) -> bool:
    """Return whether a dump is one of all calls: those of pending calls alone show none that are done."""
    return any(call.retired or call.state == CALL_STATE_COMPLETED for call in dump.calls)


def _newest_frame(rank: int, diagnosis: Diagnosis) -> str:
    calls = diagnosis.ranks.get(rank)
    newest = max(calls.at.values(), key=lambda call: call.order, default=None) if calls is not None else None
    return newest.frame if newest is not None else ""


_NAMED_SHOWN = 4


def stack_reasons(cause: Cause, found: Dumps) -> Iterator[str]:
    """Yield what stacks show: of named ranks where they are, and of the suspects of an unknown cause each place."""
    for rank in cause.ranks[:_NAMED_SHOWN]:
        thread = main_thread(found.stacks.get(rank, ""))
        if thread is not None:
            function, file = thread.own_frame
            yield f"the stack of rank {rank} is there, and shows {function} ({file})"
    by_place: dict[Place, list[int]] = {}
    for rank in _looked_at(cause, found):
        by_place.setdefault(place_of(found.stacks[rank]), []).append(rank)
    for place, ranks in by_place.items():
        shown = "no place that decides" if place == Place.UNKNOWN else f"{place.value}, which does not decide"
        yield f"the stack{'s' if len(ranks) > 1 else ''} of {ranks_text(ranks)} {_show(ranks)} {shown}"


def next_of(cause: Cause, found: Dumps) -> str:
    """Return what to do next, in one line. It asks for no stack that the folder has."""
    if cause.kind == CauseKind.NOTHING_PENDING and found.stacks:
        without = sorted(found.dumps.keys() - found.stacks.keys())
        return (
            f"take the stacks of {ranks_text(without)}, too (py-spy dump --native)" if without else _read(found.stacks)
        )
    if cause.kind == CauseKind.MISSING_RANK and found.stacks.keys() >= set(cause.ranks):
        stacks = "this stack" if len(cause.ranks) == 1 else "these stacks"
        return f"read {stacks} and the log of {ranks_text(cause.ranks)}: what keeps the host from this call"
    known = _looked_at(cause, found)
    missing = tuple(rank for rank in cause.suspects if rank not in known)
    if not known:
        return next_step(cause)
    if missing:
        return next_step(replace(cause, suspects=missing))
    plain = [rank for rank in known if not _has_native_frames(found.stacks[rank])]
    if plain:
        return f"take the stacks of {ranks_text(plain)} again, with py-spy dump --native: Python frames hide waits"
    return _read(known)


def _read(ranks: Iterable[int]) -> str:
    return f"read the stacks and the logs of {ranks_text(ranks)}: what do they wait for"


def _looked_at(cause: Cause, found: Dumps) -> list[int]:
    """Return the suspects of an unknown cause whose stacks are there."""
    return [rank for rank in cause.suspects if rank in found.stacks] if cause.kind == CauseKind.UNKNOWN else []


def _has_native_frames(stacks: str) -> bool:
    thread = main_thread(stacks)
    return thread is not None and thread.has_native_frames


def _show(ranks: list[int]) -> str:
    return "is there, and shows" if len(ranks) == 1 else "are there, and show"

"""One rank: what it does, what it waits for, how it ended, and its newest stack."""

from pathlib import Path
from typing import Any

from holdfast_core.model import CoreState, places_of
from holdfast_core.reading.rank_health import CULPRIT, EXITED, HEALTH, LEFT, OK, STALLED, STARTING, WAITING
from holdfast_core.texts.activities import does
from holdfast_core.texts.incident_lines import enum_phrase
from holdfast_daemon.console.pages.run_frame import newest_first
from holdfast_daemon.console.ranks.generation_logs import read_end
from holdfast_daemon.console.ranks.own_step_times import SingleRankTimes
from holdfast_daemon.console.ranks.rank_table import RankTable
from holdfast_daemon.console.ranks.taken_stacks import TakenStack
from holdfast_daemon.console.serving.request_guard import RefusedRequestError
from holdfast_proto import run_files
from holdfast_proto.message_json import enum_name, to_json
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

MOST_STACK_BYTES = 128 * 1024
_BADGES = {
    OK: "ok",
    STARTING: "unknown",
    WAITING: "attention",
    STALLED: "attention",
    CULPRIT: "bad",
    EXITED: "bad",
    LEFT: "ended",
}
"""Health of a rank -> colour of its badge."""


def find_rank(state: CoreState, number: int) -> tuple[str, store.RankState]:
    """Return the node and the newest state of a rank. Raises RefusedRequestError if nothing is known of it."""
    found = next(places_of(state, number), None)
    if found is None:
        raise RefusedRequestError(404, f"nothing is known of rank {number} in generation {state.record.generation}")
    return found


def rank_badge(table: RankTable, number: int) -> dict[str, str]:
    """Return the word of a rank's health, as the map has it, and the colour of its badge."""
    health = table.health.get(number)
    if health is None:
        return {"health": "", "badge": "unknown"}
    waits_for_pause = health == WAITING and bool(table.pausing)
    return {"health": HEALTH[health], "badge": "ok" if waits_for_pause else _BADGES[health]}


def rank_details(
    state: CoreState, number: int, incidents: Path, own_times: SingleRankTimes, requested: TakenStack | None
) -> dict[str, Any]:
    """Return all that is known of a rank.

    ``incidents``: folder of the run's incidents. ``requested``: newest stack that an operator has requested.
    """
    node, rank = find_rank(state, number)
    has_exit = rank.HasField("exit")
    step, phase = (rank.exit.step, rank.exit.phase) if has_exit else (rank.progress.step, rank.progress.phase)
    return {
        "rank": number,
        "node": node,
        "pid": rank.pid,
        "life": enum_name(store.Life, rank.life),
        "step": step,
        "phase": enum_name(common.Phase, phase),
        "phase_text": enum_phrase(common.Phase, phase) if phase else "",
        "process_state": rank.process_state,
        "stalled_s": round(rank.stalled_s, 2),
        "coordinates": dict(rank.coordinates),
        "device": rank.device,
        "gpu": to_json(rank.gpu) if rank.HasField("gpu") else None,
        "memory_bytes": rank.memory.allocated_bytes,
        "memory_limit_bytes": rank.memory.limit_bytes,
        "pending": _pending(rank),
        "blocked_on": does(rank.blocked_on.activity, rank.blocked_on) if rank.HasField("blocked_on") else "",
        "exit": to_json(rank.exit) if has_exit else None,
        "recorders": [to_json(recorder) for recorder in rank.recorders],
        "own_time_source": enum_name(common.OwnTimeSource, rank.own_time_source) if rank.own_time_source else "",
        "own_time_reason": rank.own_time_reason,
        "own_step_s": own_times.time_s(state.record.run, state.record.generation, rank),
        "stack": _newest_stack(state, number, incidents, requested),
    }


def _pending(rank: store.RankState) -> list[dict[str, Any]]:
    """Return the calls that the rank has begun and not completed: by name where a recorder names them."""
    named = [{"group": call.group, "op": call.op, "seq": call.seq} for call in rank.pending]
    known = {(call["group"], call["seq"]) for call in named}
    progress = rank.progress
    # A host on a GPU runs ahead of its device: its counters show calls that are only queued.
    counted = [
        {"group": group.group, "op": "collective", "seq": group.completed + 1}
        for group in progress.groups
        if group.enqueued > group.completed and (group.group, group.completed + 1) not in known
    ]
    for channel in progress.channels:
        if channel.enqueued > channel.completed:
            word = enum_name(common.Direction, channel.direction)
            counted.append({"group": channel.group, "op": f"{word} {channel.peer}", "seq": channel.completed + 1})
    return [*named, *counted]


def _newest_stack(
    state: CoreState, number: int, incidents: Path, requested: TakenStack | None
) -> dict[str, Any] | None:
    """Return the newest stack of a rank, requested or in the evidence of an incident; None: there is none."""
    name = run_files.rank_evidence(number, "stack.txt")
    for identity in newest_first(state):
        incident = state.incidents[identity]
        if requested is not None and incident.detected_unix_s < requested.unix_s:
            break
        for path in (incidents / identity / name, incidents / identity / "suspicion" / name):
            try:
                text = read_end(incidents, path, MOST_STACK_BYTES)
            except OSError:
                continue
            return _stack(state, text, incident.detected_unix_s, incident.generation) | {"incident": identity}
    if requested is None:
        return None
    found = _stack(state, requested.text, requested.unix_s, requested.generation)
    return found | {"problem": requested.problem}


def _stack(state: CoreState, text: str, unix_s: float, generation: int) -> dict[str, Any]:
    """Return a stack as the page has it. ``generation``: that of the stack, if it is not the newest one."""
    old = generation if generation != state.record.generation else None
    return {"text": text, "unix_s": unix_s, "generation": old, "incident": "", "problem": ""}

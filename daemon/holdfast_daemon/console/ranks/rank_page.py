"""One rank: what it does, what it waits for, how it ended, and its newest stack."""

from pathlib import Path
from typing import Any

from holdfast_daemon.console.pages.run_frame import newest_first
from holdfast_daemon.console.ranks.generation_logs import read_end
from holdfast_daemon.console.serving.guard import RefusedRequestError
from holdfast_daemon.core.model import CoreState
from holdfast_daemon.core.texts.activities import does
from holdfast_daemon.core.texts.incident_lines import enum_phrase
from holdfast_proto import run_files
from holdfast_proto.message_json import enum_word, to_json
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

MOST_STACK_BYTES = 128 * 1024


def find_rank(state: CoreState, number: int) -> tuple[str, store.RankState]:
    """Return the node and the newest state of a rank. Raises RefusedRequestError if nothing is known of it."""
    for name, node in state.nodes.items():
        if node.generation == state.record.generation:
            for rank in node.ranks:
                if rank.rank == number:
                    return name, rank
    raise RefusedRequestError(404, f"nothing is known of rank {number} in generation {state.record.generation}")


def rank_details(state: CoreState, number: int, incidents: Path) -> dict[str, Any]:
    """Return all that is known of a rank. ``incidents``: folder of the run's incidents."""
    node, rank = find_rank(state, number)
    stack, source = _newest_stack(state, number, incidents)
    has_exit = rank.HasField("exit")
    step, phase = (rank.exit.step, rank.exit.phase) if has_exit else (rank.progress.step, rank.progress.phase)
    return {
        "rank": number,
        "node": node,
        "pid": rank.pid,
        "life": enum_word(store.Life, rank.life),
        "step": step,
        "phase": enum_word(common.Phase, phase),
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
        "own_time_source": enum_word(common.OwnTimeSource, rank.own_time_source) if rank.own_time_source else "",
        "own_time_reason": rank.own_time_reason,
        "stack": stack,
        "stack_from": source,
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
            word = enum_word(common.Direction, channel.direction)
            counted.append({"group": channel.group, "op": f"{word} {channel.peer}", "seq": channel.completed + 1})
    return [*named, *counted]


def _newest_stack(state: CoreState, number: int, incidents: Path) -> tuple[str, str]:
    """Return the newest stack of a rank in the evidence, and the incident that has it; "" if there is none."""
    name = run_files.rank_evidence(number, "stack.txt")
    for identity in newest_first(state):
        for path in (incidents / identity / name, incidents / identity / "suspicion" / name):
            try:
                return read_end(incidents, path, MOST_STACK_BYTES), identity
            except OSError:
                continue
    return "", ""

"""Gathers what an incident is judged from, before the ranks are gone."""

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast_agent.node import Node
from holdfast_agent.rank import Rank
from holdfast_proto import black_box
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PendingCall

DUMP_PATIENCE_S = 1.5
"""For the ranks' own dumps. A hung rank's reporter still answers; a stopped one never will."""

STACK_PATIENCE_S = 4.0


async def gather(node: Node, order: store.GatherEvidence) -> store.EvidenceCaptured:
    """Fill the incident's folder and return what is in it; what cannot be had is left out."""
    directory = node.options.incident_directory(order.incident)
    directory.mkdir(parents=True, exist_ok=True)
    ranks = list(node.ranks.values())
    for rank in ranks:
        _write_black_box(node, rank, directory)
        if rank.is_alive:
            _write_process_state(rank, directory)
    stacks = [_write_stack(node.ranks[rank], directory) for rank in order.stack_ranks if rank in node.ranks]
    dumps = [_collect_dumps(node, ranks, directory)] if order.flight_recorder else []
    await asyncio.gather(*dumps, *stacks)
    pending = [call for rank in ranks for call in _pending_calls(directory / dump_name(rank.rank), rank.rank)]
    files = sorted(path.name for path in directory.iterdir())
    return store.EvidenceCaptured(incident=order.incident, files=files, pending=pending)


def dump_name(rank: int) -> str:
    """Return the name of the file into which the hooks write their Flight Recorder dump."""
    return f"rank-{rank:05}.flight_recorder.json"


def _write_black_box(node: Node, rank: Rank, directory: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        contents = black_box.read(node.options.black_box(rank.generation, rank.rank))
        text = json.dumps(dataclasses.asdict(contents), indent=1)
        (directory / f"rank-{rank.rank:05}.black_box.json").write_text(text)


def _write_process_state(rank: Rank, directory: Path) -> None:
    parts = []
    for name in ("status", "stat", "wchan", "syscall"):
        with contextlib.suppress(OSError):
            parts.append(f"== /proc/{rank.pid}/{name}\n{Path(f'/proc/{rank.pid}/{name}').read_text()}\n")
    (directory / f"rank-{rank.rank:05}.proc.txt").write_text("".join(parts))


async def _write_stack(rank: Rank, directory: Path) -> None:
    """Take the stacks of a rank from outside: it may be stopped, or hold its GIL."""
    if not rank.is_alive:
        return
    program = Path(sys.executable).parent / "py-spy"
    arguments = ["dump", "--nonblocking", "--pid", str(rank.pid)]
    try:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        text = f"no stack: {program} cannot be run: {error}\n".encode()
    else:
        try:
            output, errors = await asyncio.wait_for(process.communicate(), STACK_PATIENCE_S)
            text = output or b"no stack: " + errors
        except TimeoutError:
            process.kill()
            await process.wait()
            text = f"no stack within {STACK_PATIENCE_S:.0f} s\n".encode()
    (directory / f"rank-{rank.rank:05}.stack.txt").write_bytes(text)


async def _collect_dumps(node: Node, ranks: list[Rank], directory: Path) -> None:
    acks = []
    for rank in ranks:
        if rank.is_alive and rank.process_state not in ("T", "t"):
            capture = session.CaptureEvidence(directory=str(directory))
            acks.append(node.command(rank, session.RankCommand(capture_evidence=capture)))
    if acks:
        await asyncio.wait(acks, timeout=DUMP_PATIENCE_S)


def _pending_calls(dump: Path, rank: int) -> Iterator[PendingCall]:
    """Yield the collectives that a rank had enqueued and not completed when it wrote its dump."""
    try:
        trace: dict[str, Any] = json.loads(dump.read_text())
    except (OSError, ValueError):
        return
    completed = {
        int(key): int(status["last_completed_collective"]) for key, status in trace.get("pg_status", {}).items()
    }
    for entry in trace.get("entries", []):
        if not entry["is_p2p"] and entry["collective_seq_id"] > completed.get(entry["pg_id"], 0):
            yield PendingCall(
                rank=rank,
                group=entry["process_group"][0],
                seq=entry["collective_seq_id"],
                op=entry["profiling_name"],
            )

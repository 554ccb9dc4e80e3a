"""Takes the stacks of a rank from outside, and parses them: it may be stopped, or hold its GIL."""

import asyncio
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from holdfast_agent.blocking.blocked_thread import BlockedThread, look_at_rank
from holdfast_agent.evidence import stack_dump
from holdfast_agent.evidence.brief_command import CommandFailedError, output_of, stretched
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.stack_dump import Frame, StackDumpError, Thread
from holdfast_agent.evidence.stack_summary import sleeping_gil_owner, summarize
from holdfast_agent.evidence.worker_client import WorkerServerError, ask
from holdfast_agent.processes.rank import Rank
from holdfast_base.threads import in_daemon_thread
from holdfast_proto.run_files import rank_evidence
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1.store_pb2 import StackSummary

NATIVE_PATIENCE_S = 1.5
"""Time for native stacks. The ranks' restart waits for them."""

PLAIN_PATIENCE_S = 1.5

SERVED_PATIENCE_S = 0.5
"""Time for the stacks of torch's worker server, which usually take milliseconds."""

STOPPED = ("T", "t")
"""States of a process that is paused already, so that py-spy cannot pause it."""

_NAMED_WAITS = (
    common.ACTIVITY_DATA,
    common.ACTIVITY_LOCK,
    common.ACTIVITY_COLLECTIVE,
    common.ACTIVITY_FILE_LOCK,
    common.ACTIVITY_PIPE,
    common.ACTIVITY_PROCESS,
    common.ACTIVITY_COMPILER,
    common.ACTIVITY_DISK,
)
"""Activities that Python frames alone, or the kernel, show well enough."""

_LOOK_PATIENCE_S = 0.2
"""Time for a look at what a thread is blocked on. It usually takes a few milliseconds; but any file may block."""


async def take(
    rank: Rank, folder: EvidenceFolder, *, may_pause: bool, pids: Mapping[int, int] = MappingProxyType({})
) -> StackSummary | None:
    """Write the stacks of a rank's threads as JSON and as text; return their summary, None if py-spy fails.

    ``may_pause``: if neither the kernel nor the Python frames show what the rank waits for, take native frames too.
    That pauses the rank, usually for half a second. ``pids``: pid -> number of all ranks of the node.
    """

    def look() -> BlockedThread:
        is_cpu = rank.device.startswith("cpu")
        return look_at_rank(rank.pid, pids, store_port=rank.store_port, computes_on_cpu=is_cpu)

    def summary_of(found: tuple[Thread, ...]) -> StackSummary:
        is_cpu = rank.device.startswith("cpu")
        return summarize(
            rank.rank, rank.thread_id, found, computes_on_cpu=is_cpu, blocked=blocked, gil_owner_blocked=of_owner
        )

    # Before py-spy: while it pauses the rank, the kernel shows the pause.
    blocked = await _in_time(folder, rank, lambda: look().look(rank.thread_id))
    of_owner = None
    threads = await _dump(rank, folder, "--nonblocking", PLAIN_PATIENCE_S)
    if threads is None and may_pause and rank.process_state not in STOPPED:
        threads = await _served(rank, folder)
    owner = sleeping_gil_owner(threads or ())
    if owner is not None and (owner_id := owner.system_id):
        of_owner = await _in_time(folder, rank, lambda: look().look(owner_id))
    summary = summary_of(threads) if threads is not None else None
    if rank.process_state in STOPPED:
        if summary is not None:
            summary.activity = common.ACTIVITY_STOPPED
            summary.ClearField("blocked_on")
    elif may_pause and (summary is None or summary.activity not in _NAMED_WAITS):
        native = await _native(rank, folder, NATIVE_PATIENCE_S)
        summary = summary_of(native) if native is not None else summary
    if summary is not None and _lacks_process(summary):
        child = await _in_time(folder, rank, lambda: look().child())
        if child is not None and child.pid:
            child.activity = summary.activity if child.activity == common.ACTIVITY_PROCESS else child.activity
            summary.activity = child.activity
            summary.blocked_on.CopyFrom(child)
    return summary


async def take_all(rank: Rank, folder: EvidenceFolder, *, native: bool, patience_s: float) -> tuple[Thread, ...] | None:
    """Return the stacks of all threads of a rank; None, and lines in the folder, if none can be taken.

    ``native``: also show frames of compiled code, which pauses the rank, usually for half a second and for
    ``patience_s`` at most. A process that is stopped shows Python frames only.
    """
    threads = await _dump(rank, folder, "--nonblocking", patience_s)
    if threads is None and rank.process_state not in STOPPED:
        threads = await _served(rank, folder)
    if not native:
        return threads
    if rank.process_state in STOPPED:
        folder.miss("native frames", "the process is stopped, so only Python frames are shown")
        return threads
    return await _native(rank, folder, patience_s) or threads


async def _native(rank: Rank, folder: EvidenceFolder, patience_s: float) -> tuple[Thread, ...] | None:
    rank.held_for_stacks = True
    rank.pauses_total += 1
    try:
        return await _dump(rank, folder, "--native", patience_s)
    finally:
        rank.held_for_stacks = False


def _lacks_process(summary: StackSummary) -> bool:
    """Whether the rank waits for a process that the kernel has not named: it asks again and again."""
    waits = summary.activity in (common.ACTIVITY_PROCESS, common.ACTIVITY_COMPILER)
    return waits and not summary.blocked_on.pid


async def _in_time(
    folder: EvidenceFolder, rank: Rank, look: Callable[[], common.BlockedOn | None]
) -> common.BlockedOn | None:
    """Return what a look shows; None if it takes too long or fails. The stacks are then needed all the more."""
    what = f"{rank_evidence(rank.rank, 'stack')} (what it waits for)"
    limit_s = stretched(_LOOK_PATIENCE_S)
    looking = asyncio.ensure_future(in_daemon_thread(look))
    try:
        done, _ = await asyncio.wait([looking], timeout=limit_s)
    finally:
        looking.cancel()  # if it has not ended; nobody will ask for its outcome
    if not done:
        folder.miss(what, f"the kernel did not show it within {limit_s:g} s")
        return None
    error = looking.exception()
    if error is not None:
        folder.miss(what, repr(error))
        return None
    return looking.result()


async def _served(rank: Rank, folder: EvidenceFolder) -> tuple[Thread, ...] | None:
    """Write the Python stacks that torch's worker server shows; None if the rank has none, or it fails.

    The server needs the interpreter's lock for them. While another thread holds it, the request keeps one of the
    server's threads. So only a rank that a verdict names is asked, once.
    """
    if not rank.worker_socket:
        return None
    name = f"{rank_evidence(rank.rank, 'stack')}.txt"
    try:
        dump = await ask(rank.worker_socket, rank.pid, "dump_traceback", stretched(SERVED_PATIENCE_S))
        text = dump.decode(errors="replace")
        threads = parse(text, rank.pid)
    except (WorkerServerError, StackDumpError) as error:
        folder.miss(f"{name} (torch's worker server)", error)
        return None
    folder.write(name, text)
    return threads


async def _dump(rank: Rank, folder: EvidenceFolder, option: str, patience_s: float) -> tuple[Thread, ...] | None:
    program = Path(sys.executable).parent / "py-spy"
    name = rank_evidence(rank.rank, "stack")
    try:
        text = await output_of(program, ["dump", "--json", "--pid", str(rank.pid), option], patience_s)
        threads = stack_dump.parse(text)
    except (CommandFailedError, StackDumpError) as error:
        folder.miss(f"{name}.txt ({option})", error)
        return None
    folder.write(f"{name}.json", text)
    folder.write(f"{name}.txt", stack_dump.render(threads, rank.thread_id))
    return threads


_HEAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(?P<name>.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')


def parse(text: str, pid: int) -> tuple[Thread, ...]:
    """Return the threads that have Python frames. Raises StackDumpError if there are none.

    The oldest thread comes last: it is the main thread, which gets number ``pid``. If the text was cut after the first
    hundred threads, no thread gets it. The text does not say which thread runs or owns the interpreter's lock, so none
    is shown to.
    """
    found: list[tuple[str, list[Frame]]] = []
    is_cut = False
    for line in text.splitlines():
        head, frame = _HEAD.fullmatch(line), _FRAME.fullmatch(line)
        if head is not None:
            found.append((head["name"] or "", []))
        elif frame is not None and found:
            number = int(frame["line"]) if frame["line"].isdigit() else 0
            found[-1][1].append(Frame(frame["function"], frame["file"], number))
        is_cut = line == "..."
    if not any(frames for _, frames in found):
        raise StackDumpError("no stack of a Python thread")
    main = len(found) - 1 if not is_cut else -1
    return tuple(
        Thread(pid if index == main else None, name, active=False, owns_gil=False, frames=tuple(frames))
        for index, (name, frames) in enumerate(found)
        if frames
    )

"""Takes the stacks of live ranks for an operator, and packs them into one message."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast_agent.blocking.proc_texts import clean
from holdfast_agent.evidence import stacks
from holdfast_agent.evidence.evidence_folder import EvidenceFolder
from holdfast_agent.evidence.stack_dump import Frame, Thread
from holdfast_agent.evidence.stack_summary import summarize
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank
from holdfast_base.text import reason_of
from holdfast_proto.limits import NAME_CHARACTERS
from holdfast_proto.run_files import MISSING
from holdfast_proto.v1 import store_pb2 as store

PATIENCE_S = 5.0
"""Time for one look at a rank. An operator can wait longer than the restart of a run."""

STALLED_S = 5.0
"""Stall after which native frames are taken without being asked for: a pause harms a rank that does not move least."""

AT_ONCE = 2
"""Ranks that py-spy looks at together: it computes, and the ranks need the cores."""

MOST_BYTES = 1 << 20
"""Most bytes of one answer, which passes through the store."""

_FRAME_CHARACTERS, _PROBLEM_CHARACTERS = 512, 2000
_THREADS, _FRAMES = 512, 256
"""Most threads of a rank and most frames of a thread. A runaway recursion has a thousand, and the innermost tell."""


class LiveStacks:
    """Takes the stacks of one node's ranks."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def take(self, command: store.TakeStacks) -> store.StacksTaken:
        """Return the stacks of the ranks that the command names; for each that has none, why."""
        pack = _Pack(command.request)
        looks = [self._look(number, native=command.native) for number in command.ranks]
        for number, (threads, problem) in zip(command.ranks, await asyncio.gather(*looks), strict=True):
            pack.add(self._node.ranks.get(number), number, threads, problem)
        return pack.message

    async def _look(self, number: int, *, native: bool) -> tuple[Sequence[Thread], str]:
        """Return the threads of a rank, and why some or all of what was asked for is missing."""
        async with self._turn:
            rank = self._node.ranks.get(number)
            if rank is None or not rank.is_alive:
                return (), "it is not alive on this node"
            try:
                with tempfile.TemporaryDirectory(dir=self._node.options.node_directory) as place:
                    folder = EvidenceFolder(Path(place), self._node.options.node)
                    native = native or rank.stalled_s >= STALLED_S
                    threads = await stacks.take_all(rank, folder, native=native, patience_s=PATIENCE_S)
                    return threads or (), _problem(folder, is_found=bool(threads))
            except OSError as error:
                return (), f"the agent cannot keep them for a moment: {reason_of(error)}"
            except Exception as error:  # noqa: BLE001  the operator waits for the answer
                self._node.errors.note("evidence", error)
                return (), f"the agent failed: {error!r}: see its log"


class _Pack:
    """Fills a message in which each frame is once."""

    def __init__(self, request: str) -> None:
        self.message = store.StacksTaken(request=request)
        self._numbers: dict[Frame, int] = {}
        self._bytes = 0

    def add(self, rank: Rank | None, number: int, threads: Sequence[Thread], problem: str) -> None:
        packed = store.RankStacks(rank=number, pid=rank.pid if rank else 0, problem=clean(problem, _PROBLEM_CHARACTERS))
        if rank is not None and threads:
            is_cpu = rank.device.startswith("cpu")
            packed.activity = summarize(number, rank.thread_id, threads, computes_on_cpu=is_cpu).activity
        if self._bytes > MOST_BYTES:
            packed.problem = "the answer of its node is full: name fewer ranks with --rank"
        else:
            packed.threads.extend(map(self._thread, threads[:_THREADS]))
        self._bytes += packed.ByteSize()
        self.message.ranks.append(packed)

    def _thread(self, thread: Thread) -> store.ThreadFrames:
        return store.ThreadFrames(
            id=max(0, thread.system_id or 0),
            name=clean(thread.name, NAME_CHARACTERS),
            active=thread.active,
            owns_gil=thread.owns_gil,
            frames=[self._number(frame) for frame in thread.frames[:_FRAMES]],
        )

    def _number(self, frame: Frame) -> int:
        number = self._numbers.setdefault(frame, len(self._numbers))
        if number == len(self.message.frames):
            packed = store.StackFrame(
                function=clean(frame.function, _FRAME_CHARACTERS),
                file=clean(frame.file, _FRAME_CHARACTERS),
                line=min(max(0, frame.line), 2**31),
            )
            self.message.frames.append(packed)
            self._bytes += packed.ByteSize()
        return number


def _problem(folder: EvidenceFolder, *, is_found: bool) -> str:
    """Return the last of what is missing, in one line; "" if nothing is."""
    path = folder.path / MISSING
    lines = path.read_text().splitlines() if path.exists() else []
    if not lines:
        return "" if is_found else "py-spy showed no threads"
    # "NODE: FILE: why": the reader asked for stacks, and knows the node.
    return lines[-1].removeprefix(f"{folder.node}: ")

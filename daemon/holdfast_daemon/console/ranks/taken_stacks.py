"""Stacks that operators have requested: the newest of each rank is kept for its page, in memory."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast_proto.run_files import rank_evidence
from holdfast_proto.v1 import store_pb2 as store

MOST_KEPT = 64
"""Most stacks that are kept, over all runs: the newest."""
MOST_CHARACTERS = 128 * 1024
"""Most characters of one stack that are kept. Its beginning, with the main thread, stays."""


@dataclass(frozen=True)
class TakenStack:
    """The stack of one rank."""

    unix_s: float
    """Unix time of the daemon's clock at which it came."""
    generation: int
    text: str
    problem: str
    """Why a part is missing; "": nothing is."""


class TakenStacks:
    """The newest stack of each rank. Several threads may use it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int], TakenStack] = {}

    def keep(self, run: str, generation: int, number: int, taken: store.StacksTaken) -> str:
        """Keep the stack of a rank, if an answer has it; else return why there is none."""
        for rank in taken.ranks:
            # The problem may name the file that an incident would have.
            problem = rank.problem.removeprefix(f"{rank_evidence(number, 'stack.txt')} ")
            if rank.rank == number and rank.threads:
                text = stack_text(taken, rank)[:MOST_CHARACTERS]
                with self._lock:
                    self._kept.pop((run, number), None)
                    self._kept[run, number] = TakenStack(self._now(), generation, text, problem)
                    while len(self._kept) > MOST_KEPT:
                        del self._kept[next(iter(self._kept))]
                return ""
            if rank.rank == number:
                return problem or "its process shows no threads"
        return "its node has sent none"

    def newest(self, run: str, number: int) -> TakenStack | None:
        """Return the newest stack of a rank; None: nobody has requested one."""
        with self._lock:
            return self._kept.get((run, number))


def stack_text(taken: store.StacksTaken, rank: store.RankStacks) -> str:
    """Return the stacks of a rank as an incident's evidence has them: the main thread, which trains, comes first."""
    threads = sorted(rank.threads, key=lambda thread: thread.id != rank.pid)
    return "\n".join("".join(_lines(taken, thread)) for thread in threads)


def _lines(taken: store.StacksTaken, thread: store.ThreadFrames) -> Iterator[str]:
    gil = ", holds the GIL" if thread.owns_gil else ""
    yield f'thread {thread.id or None} ({"active" if thread.active else "idle"}{gil}): "{thread.name}"\n'
    for number in thread.frames:
        frame = taken.frames[number]
        name = frame.file.rpartition("/")[2]
        yield f"    {frame.function} ({f'{name}:{frame.line}' if frame.line else name})\n"

"""The stacks of live ranks as the daemon sends them, in the form in which they are shown and saved."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_agent.evidence.stack_dump import Frame, Thread, render
from holdfast_base.files import replace_file
from holdfast_core.naming import activity_name
from holdfast_proto.run_files import rank_evidence
from holdfast_proto.v1.common_pb2 import Activity
from holdfast_proto.v1.control_pb2 import NodeStacks
from holdfast_proto.v1.store_pb2 import RankStacks


@dataclass(frozen=True)
class LiveStack:
    """The threads of one rank. Without any, ``problem`` says why."""

    rank: int
    node: str
    pid: int
    threads: tuple[Thread, ...]
    problem: str
    activity: "Activity"

    def is_main(self, thread: Thread) -> bool:
        """Whether it is the thread that the process began with, which trains."""
        return thread.system_id == self.pid

    def to_json(self) -> dict[str, Any]:
        """Return it for scripts. Frames are listed from the innermost one."""
        return {
            "rank": self.rank,
            "node": self.node,
            "pid": self.pid,
            "activity": activity_name(self.activity) if self.activity else "",
            "problem": self.problem,
            "threads": [
                {
                    "id": thread.system_id or 0,
                    "name": thread.name,
                    "is_main": self.is_main(thread),
                    "active": thread.active,
                    "owns_gil": thread.owns_gil,
                    "frames": [{"function": one.function, "file": one.file, "line": one.line} for one in thread.frames],
                }
                for thread in self.threads
            ],
        }


def unpacked(nodes: Iterable[NodeStacks]) -> list[LiveStack]:
    """Return the stacks of all ranks in the order of their numbers."""
    found = []
    for node in nodes:
        frames = [Frame(frame.function, frame.file, frame.line) for frame in node.taken.frames]
        found += [_unpacked(node.node, rank, frames) for rank in node.taken.ranks]
    return sorted(found, key=lambda one: one.rank)


def _unpacked(node: str, rank: RankStacks, frames: list[Frame]) -> LiveStack:
    threads = tuple(
        Thread(
            system_id=thread.id or None,
            name=thread.name,
            active=thread.active,
            owns_gil=thread.owns_gil,
            frames=tuple(frames[number] for number in thread.frames),
        )
        for thread in rank.threads
    )
    return LiveStack(rank.rank, node, rank.pid, threads, rank.problem, rank.activity)


def save(stacks: Iterable[LiveStack], folder: Path) -> int:
    """Write one text for each rank that has stacks, as an incident has them; return how many. Raises OSError.

    The names are those that `holdfast analyze` reads, next to the dumps of Flight Recorders.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = 0
    for one in stacks:
        if one.threads:
            path = folder / rank_evidence(one.rank, "stack.txt")
            replace_file(path, render(one.threads, one.pid).encode(), mode=0o600)
            written += 1
    return written

"""Finds the processes around a rank: those that it has started, those that have a file of it open, its fellow ranks."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic

from holdfast_agent.blocking.proc_texts import LONGEST_NAME, clean, parse_descriptor_info
from holdfast_agent.movement.process_table import read_file, read_process
from holdfast_proto.v1 import common_pb2 as common

_ANCESTORS = 32
_MOST_DESCENDANTS = 1024


class OutOfTimeError(Exception):
    """The search has taken longer than it may."""


@dataclass(frozen=True)
class Other:
    """The process at the other end of something."""

    party: "common.Party"
    pid: int = 0
    rank: int = 0

    def enter(self, blocked: common.BlockedOn, command: str) -> None:
        """Enter it into a message."""
        blocked.party, blocked.pid, blocked.rank, blocked.command = self.party, self.pid, self.rank, command


UNKNOWN = Other(common.PARTY_UNSPECIFIED)


class Relatives:
    """The processes around the rank ``pid``, as far as they can be found until ``deadline_s`` (monotonic).

    ``ranks``: pid -> number of all ranks of this node.
    """

    def __init__(self, pid: int, ranks: Mapping[int, int], *, deadline_s: float, proc: str = "/proc") -> None:
        self._pid = pid
        self._ranks = ranks
        self._deadline_s = deadline_s
        self._proc = proc
        self._known: dict[int, list[int]] = {}

    def descendants(self, pid: int = 0) -> list[int]:
        """Return the live processes that a rank has started, directly or not, parents before children.

        Raises OutOfTimeError.
        """
        pid = pid or self._pid
        if pid not in self._known:
            found = list(self.children(pid))
            for each in found:
                self._check_time()
                found += self.children(each) if len(found) < _MOST_DESCENDANTS else ()
            self._known[pid] = found
        return self._known[pid]

    def children(self, pid: int) -> Iterator[int]:
        """Yield the live processes that a process has started."""
        for thread in _listed(f"{self._proc}/{pid}/task"):
            text = _read(read_file, f"{self._proc}/{pid}/task/{thread}/children")
            yield from (int(each) for each in text.split() if each.isdecimal() and self.lives(int(each)))

    def of_process(self, pid: int) -> Other:
        """Return how a process is related to the rank."""
        if pid == self._pid:
            return Other(common.PARTY_ITSELF, pid)
        each = pid
        for _ in range(_ANCESTORS):
            if each == self._pid:
                return Other(common.PARTY_CHILD, pid)
            if each in self._ranks:
                return Other(common.PARTY_RANK, pid, self._ranks[each])
            process = read_process(each, self._proc)
            if process is None or not process.parent:
                break
            each = process.parent
        return Other(common.PARTY_FOREIGN, pid) if self.lives(pid) else UNKNOWN

    def holder(self, link: str, *, of_writes: bool) -> Other:
        """Return who has a file open at its other end. ``of_writes``: at the end that writes.

        The processes of the rank come first, then those of the other ranks, then all others, then the rank itself.
        If several processes of the nearest kind have it open, the pid is 0. Raises OutOfTimeError.
        """
        own = self.descendants()
        others = [each for rank in self._ranks if rank != self._pid for each in (rank, *self.descendants(rank))]
        nearer = {*own, *others, self._pid}
        for candidates in (own, others, (each for each in self._all() if each not in nearer), [self._pid]):
            found = [each for each in candidates if self._has_open(each, link, of_writes=of_writes)]
            if found:
                other = self.of_process(found[0])
                return other if len(found) == 1 else Other(other.party, 0, other.rank)
        return UNKNOWN

    def command(self, pid: int) -> str:
        """Return the name of a process; empty: it is gone, or must not be seen."""
        try:
            return clean(read_file(f"{self._proc}/{pid}/comm").strip(), LONGEST_NAME)
        except OSError:
            return ""

    def lives(self, pid: int) -> bool:
        """Return whether a process exists and has not ended."""
        process = read_process(pid, self._proc)
        return process is not None and process.lives

    def _all(self) -> Iterator[int]:
        return (int(name) for name in _listed(self._proc) if name.isdecimal())

    def _has_open(self, pid: int, link: str, *, of_writes: bool) -> bool:
        self._check_time()
        folder = f"{self._proc}/{pid}"
        for name in _listed(f"{folder}/fd"):
            if _read(os.readlink, f"{folder}/fd/{name}") != link:
                continue
            info = parse_descriptor_info(_read(read_file, f"{folder}/fdinfo/{name}"))
            if info.writes if of_writes else info.reads:
                return True
        return False

    def _check_time(self) -> None:
        if monotonic() > self._deadline_s:
            raise OutOfTimeError


def _listed(folder: str) -> Iterable[str]:
    """Return the names in a folder of /proc; none if it is gone, or must not be seen."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - much faster
    except OSError:
        return ()


def _read(read: Callable[[str], str], path: str) -> str:
    """Return what ``read`` finds; empty if the process is gone, or must not be seen."""
    try:
        return read(path)
    except OSError:
        return ""

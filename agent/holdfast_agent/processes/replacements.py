"""Finds the processes with which another launcher has replaced ranks, before they say hello.

A launcher such as torchrun starts a rank again as its own child, with the number of the rank in the environment. What
it starts may import for a minute before it attaches, and may end before it does.
"""

from collections.abc import Collection
from pathlib import Path

from holdfast_agent.movement.process_table import Process, read_process
from holdfast_agent.processes.rank import Rank
from holdfast_base import processes


def parent_of(pid: int) -> Process | None:
    """Return the process that has started another one; None if that is not known, or has ended."""
    child = read_process(pid)
    parent = read_process(child.parent) if child is not None else None
    return parent.identity if parent is not None and parent.pid > 1 else None


def has_replacement(ranks: Collection[Rank]) -> bool:
    """Return whether a process runs in the place of one of the ranks, which has ended."""
    known = {rank.pid for rank in ranks}
    ended = [rank for rank in ranks if not rank.is_alive and rank.parent is not None]
    return any(_is_rank(child, rank.rank) for rank in ended for child in _children(rank.parent) - known)


def _children(parent: Process | None) -> set[int]:
    if parent is None or not processes.is_alive(*parent):
        return set()
    try:  # the file is there if the kernel was built with CONFIG_PROC_CHILDREN, as those of distributions are
        threads = Path(f"/proc/{parent[0]}/task").iterdir()
        return {int(pid) for thread in threads for pid in (thread / "children").read_text().split()}
    except OSError:
        return set()


def _is_rank(pid: int, number: int) -> bool:
    try:
        return f"RANK={number}".encode() in processes.environment(pid)
    except OSError:  # it has ended, or belongs to another user
        return False

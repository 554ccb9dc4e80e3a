"""Sees process groups while torch makes them, in the frames of this process's threads.

A rank may hang there: its members look for each other in the store. Until it returns, no recorder knows the group.
"""

import sys
from collections.abc import Iterator
from types import FrameType

from holdfast_proto.v1.common_pb2 import GroupProgress

_NAMED = "_new_process_group_helper"
"""Function that knows the name and the members of the group that it makes."""

MAKERS = frozenset((_NAMED, "split_group", "shrink_group"))
"""Functions of ``torch.distributed.distributed_c10d`` in which groups are made."""

_FILE = "distributed_c10d.py"


def frames_that_make_groups() -> Iterator[FrameType]:
    """Yield the frames of all threads that are in a function that makes a group."""
    for inner in sys._current_frames().values():
        frame: FrameType | None = inner
        while frame is not None:
            code = frame.f_code
            if code.co_name in MAKERS and code.co_filename.endswith(_FILE):
                yield frame
            frame = frame.f_back


def groups_being_made() -> list[GroupProgress]:
    """Return the groups of this rank that threads are making now, without calls; none for the world's, the first."""
    found = []
    for frame in frames_that_make_groups():
        made = frame.f_locals if frame.f_code.co_name == _NAMED else {}
        name, members = made.get("group_name"), made.get("global_ranks_in_group")
        if isinstance(name, str) and members and made.get("group_rank") is not None:  # None: it is no member
            found.append(GroupProgress(group=name, members=sorted(members), description=made.get("group_desc") or ""))
    return found

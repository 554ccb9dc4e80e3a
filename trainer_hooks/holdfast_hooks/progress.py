"""How far this rank is in every process group, from torch's Flight Recorder."""

import json
import sys
from dataclasses import dataclass
from typing import Any

from holdfast_hooks.flight_recorder import Dump, RecorderUnavailableError, find_dump
from holdfast_hooks.once import OnceLog
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.v1.common_pb2 import GroupProgress


@dataclass(frozen=True)
class Group:
    """A process group that the recorder knows."""

    name: str
    members: tuple[int, ...]
    """Global ranks, ascending."""
    description: str
    box_index: int | None
    """In the black box; None if its table is full."""


class ProgressPoll:
    """Asks for each group's newest enqueued and completed seq; notes them in the black box.

    The recorder's status names groups by the order of their creation alone. The first time such an id
    appears, one full dump tells which group it is; if it does not (the group's calls have left the
    recorder's ring), the next attempts are spaced further and further.
    """

    def __init__(self, black_box: BlackBoxWriter | None, once: OnceLog) -> None:
        self.failures_total = 0
        self._black_box = black_box
        self._once = once
        self._groups: dict[str, Group] = {}
        self._polls = 0
        self._next_resolve = 0

    def poll(self) -> list[GroupProgress]:
        """Return every known group's progress; empty before the first group, or if the recorder fails."""
        self._polls += 1
        try:
            dump = find_dump()
            return [] if dump is None else self._read(dump)
        except (RecorderUnavailableError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            self.failures_total += 1
            self._once.warn("progress of process groups is not available", error)
            return []

    def _read(self, dump: Dump) -> list[GroupProgress]:
        status = json.loads(dump(False, False))["pg_status"]
        if status.keys() - self._groups.keys() and self._polls >= self._next_resolve:
            self._resolve(dump)
            unresolved = status.keys() - self._groups.keys()
            self._next_resolve = 2 * self._polls if unresolved else 0
        return [self._progress(self._groups[key], status[key]) for key in status if key in self._groups]

    def _resolve(self, dump: Dump) -> None:
        alive = _groups_by_name()
        for entry in json.loads(dump(True, False)).get("entries", ()):
            key = str(entry["pg_id"])
            name = entry["process_group"][0]
            if key not in self._groups and name in alive:
                self._groups[key] = self._describe(name, alive[name])

    def _describe(self, name: str, group: Any) -> Group:
        distributed = sys.modules["torch.distributed"]
        members = tuple(sorted(distributed.get_process_group_ranks(group)))
        index = self._black_box.add_group(name) if self._black_box else None
        return Group(name, members, group.group_desc or "", index)

    def _progress(self, group: Group, status: dict[str, str]) -> GroupProgress:
        # The recorder says -1 before the first call.
        enqueued = max(0, int(status["last_enqueued_collective"]))
        completed = max(0, int(status["last_completed_collective"]))
        if self._black_box is not None and group.box_index is not None:
            self._black_box.group(group.box_index, enqueued, completed)
        return GroupProgress(
            group=group.name,
            members=group.members,
            enqueued=enqueued,
            completed=completed,
            description=group.description,
        )


def _groups_by_name() -> dict[str, Any]:
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    # list() first: the training thread may be making a group right now.
    return {group.group_name: group for group in list(world.pg_map)}

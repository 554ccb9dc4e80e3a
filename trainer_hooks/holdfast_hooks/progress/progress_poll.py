"""Reads this rank's progress in every process group from torch's Flight Recorder."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress.pending_calls import PendingCalls
from holdfast_hooks.progress.point_to_point import PointToPointRecord
from holdfast_hooks.progress.recorders.recorder import Dump, RecorderUnavailableError, find_dump
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.member_runs import runs_of
from holdfast_proto.v1.common_pb2 import GroupProgress

# Corrects a completed seq that is too low.
#
# Gloo finishes collectives on several threads, and each writes its own seq as the newest completed one. If the thread
# with an older seq writes last, the status shows that seq until the next collective. An entry of a full dump says
# reliably whether it is retired, but a full dump costs too much for every poll.

_SETTLED_AFTER_POLLS = 3


class Settling:
    """Follows the completed seq of one group, and corrects it if the status has not changed for a few polls.

    Seqs count collectives only.
    """

    def __init__(self) -> None:
        self._status = (0, 0)
        self._unchanged_polls = 0
        self._next_check = _SETTLED_AFTER_POLLS
        self.completed = 0
        """Newest seq that is known to be completed; it never falls."""

    def observe(self, enqueued: int, completed: int) -> bool:
        """Note a poll's status; return whether a full dump should show if a call is really unfinished.

        It should once the status has shown the same unfinished call for some polls, and then more and more rarely.
        """
        if (enqueued, completed) != self._status:
            self._status = (enqueued, completed)
            self._unchanged_polls = 0
            self._next_check = _SETTLED_AFTER_POLLS
        self.completed = max(self.completed, completed)
        self._unchanged_polls += 1
        if self.completed >= enqueued or self._unchanged_polls < self._next_check:
            return False
        self._next_check = 2 * self._unchanged_polls
        return True

    def correct(self, entries: Iterable[dict[str, Any]]) -> None:
        """Correct the completed seq from the group's collectives in a full dump, oldest first."""
        newest = 0
        for entry in entries:
            if not entry["retired"]:
                break
            newest = entry["collective_seq_id"]
        self.completed = max(self.completed, newest)


if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Group:
    """A process group in the recorder."""

    name: str
    member_runs: tuple[int, ...]
    """Global ranks, ascending, as runs."""
    description: str
    box_index: int | None
    """Index in the black box; None if its table is full."""
    unseen: int
    """Number of seqs of point-to-point calls from before these were recorded, or one more: see the method _unseen."""
    settling: Settling | None
    """Correction of a completed seq that is too low, which only gloo's status can be; None for other backends."""


class ProgressPoll:
    """Polls each group's newest enqueued and completed seq, and keeps them in the black box. Reporter thread only.

    The recorder's status names groups only by the order of their creation. The first time such an id appears, one full
    dump shows which group it is. If it does not, because the group's calls have left the recorder's ring, the poll
    tries again at longer and longer intervals. It also does so while a group seems to have unseen calls.
    """

    def __init__(self, black_box: BlackBoxWriter | None, point_to_point: PointToPointRecord, once: OnceLog) -> None:
        self.failures_total = 0
        self.pending = PendingCalls(black_box)
        self.no_call_pending = False
        """Whether the newest poll saw for certain that no collective of any group was pending."""
        self._black_box = black_box
        self._point_to_point = point_to_point
        self._once = once
        self._groups: dict[str, Group] = {}
        self.attempts_total = 0
        self._next_resolve = 0
        self._next_look = 0

    @property
    def has_groups(self) -> bool:
        """Whether a group is known."""
        return bool(self._groups)

    def poll(self, *, last: bool = False) -> list[GroupProgress]:
        """Return the progress of every known group; nothing before the first group, or if the recorder fails.

        ``last``: an exception ends this rank, so :attr:`pending` names the calls that it had not finished.
        """
        self.attempts_total += 1
        self.no_call_pending = False
        try:
            dump = find_dump()
            return [] if dump is None else self._read(dump, last=last)
        except (RecorderUnavailableError, RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            self.failures_total += 1
            self._once.warn("progress of process groups is not reported", error)
            return []

    def _read(self, dump: Dump, *, last: bool) -> list[GroupProgress]:
        status = json.loads(dump(False, False))["pg_status"]
        if self._should_resolve(status):
            self._resolve(dump)
            unresolved = status.keys() - self._groups.keys()
            self._next_resolve = 2 * self.attempts_total if unresolved else 0
            self._next_look = 2 * self.attempts_total
        seqs = {key: self._seqs(self._groups[key], status[key]) for key in status if key in self._groups}
        self._settle(dump, seqs)
        seqs = {key: (enqueued, self._completed(key, completed)) for key, (enqueued, completed) in seqs.items()}
        self.no_call_pending = len(seqs) == len(status) and all(pair[0] <= pair[1] for pair in seqs.values())
        self._name_pending(dump, seqs, last=last)
        return [self._progress(self._groups[key], *pair) for key, pair in seqs.items()]

    def _settle(self, dump: Dump, seqs: Mapping[str, tuple[int, int]]) -> None:
        """Correct the groups whose status has shown the same unfinished call for some polls."""
        settling = {key: one for key in seqs if (one := self._groups[key].settling) is not None}
        # A list and no any(): every group must see every poll.
        doubtful = [key for key, one in settling.items() if one.observe(*seqs[key])]
        if doubtful:
            entries = _collectives(json.loads(dump(True, False)))
            for key in doubtful:
                settling[key].correct(entries.get(key, ()))

    def _completed(self, key: str, completed: int) -> int:
        settling = self._groups[key].settling
        return completed if settling is None else settling.completed

    def _name_pending(self, dump: Dump, seqs: Mapping[str, tuple[int, int]], *, last: bool) -> None:
        began_s = monotonic()
        if self.pending.observe(seqs, began_s):
            entries = _collectives(json.loads(dump(True, False)))
            self.pending.name(entries, began_s=began_s, ended_s=monotonic())
        if last:
            self.pending.name_last(_collectives(json.loads(dump(True, False))))

    def _should_resolve(self, status: Mapping[str, dict[str, str]]) -> bool:
        if status.keys() - self._groups.keys() and self.attempts_total >= self._next_resolve:
            return True
        return self.attempts_total >= self._next_look and any(group.unseen for group in self._groups.values())

    def _resolve(self, dump: Dump) -> None:
        alive = _groups_by_name()
        recorded = json.loads(dump(True, False))
        for key, entries in _collectives(recorded).items():
            unseen = self._unseen(entries[-1], recorded["pg_status"][key])
            known, group = self._groups.get(key), alive.get(entries[-1]["process_group"][0])
            if known is not None:
                self._groups[key] = replace(known, unseen=min(known.unseen, unseen))
            elif group is not None:
                self._groups[key] = self._describe(entries[-1], group, unseen)

    def _unseen(self, newest: dict[str, Any], status: dict[str, str]) -> int:
        """Return how many seqs of a group belong to no recorded call, which may be one too many.

        Gloo first counts a call and then records it. To record it, it waits for the interpreter's lock, which the
        reporter holds during the dump. A call in between counts as unseen, and this rank would seem to be one call
        behind the others for good. So the least number of all dumps is the right one. A dump of a rank that hangs is
        always right.
        """
        name, enqueued = newest["process_group"][0], int(status["last_enqueued_collective"])
        recorded: int = newest["collective_seq_id"]
        return max(0, enqueued - self._point_to_point.calls_before(name, enqueued) - recorded)

    def _describe(self, newest: dict[str, Any], group: "ProcessGroup", unseen: int) -> Group:
        """Describe a group from its newest entry in the full dump."""
        name = newest["process_group"][0]
        members = sorted(sys.modules["torch.distributed"].get_process_group_ranks(group))
        index = self._black_box.add_group(name) if self._black_box else None
        settling = Settling() if newest["profiling_name"].startswith("gloo:") else None
        return Group(name, tuple(runs_of(members)), group.group_desc or "", index, unseen, settling)

    def _seqs(self, group: Group, status: dict[str, str]) -> tuple[int, int]:
        """Return the newest enqueued and completed seq of a status."""
        return (
            self._collective_seq(group, int(status["last_enqueued_collective"])),
            self._collective_seq(group, int(status["last_completed_collective"])),
        )

    def _progress(self, group: Group, enqueued: int, completed: int) -> GroupProgress:
        if self._black_box is not None and group.box_index is not None:
            self._black_box.group(group.box_index, enqueued, completed)
        return GroupProgress(
            group=group.name,
            member_runs=group.member_runs,
            enqueued=enqueued,
            completed=completed,
            description=group.description,
        )

    def _collective_seq(self, group: Group, seq: int) -> int:
        """Return a seq without the point-to-point calls before it; 0 before the first collective."""
        return max(0, seq - group.unseen - self._point_to_point.calls_before(group.name, seq))


def _collectives(recorded: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the collectives of a full dump by group id, oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in recorded.get("entries", ()):
        if not entry["is_p2p"]:
            found.setdefault(str(entry["pg_id"]), []).append(entry)
    return found


def _groups_by_name() -> "dict[str, ProcessGroup]":
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    # A copy first, because the training thread may be creating a group right now.
    return {group.group_name: group for group in list(world.pg_map)}

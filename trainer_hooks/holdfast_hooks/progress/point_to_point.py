"""Records point-to-point calls on CPU tensors, which torch's Flight Recorder leaves out on gloo.

isend, irecv, batch_isend_irecv and the pipeline schedules all end in ``ProcessGroup.send`` and ``.recv``, so these two
are wrapped while the hooks are attached. Calls on GPU tensors are not counted: there a dropped Work says nothing about
completion, and NCCL's recorder has them, except those that a CUDA graph replays. Of these calls only the first with
each peer is noted while it lasts, because it may make a communicator: see :mod:`~.recorders.quiet`.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable
from time import time_ns
from typing import Any, Protocol

from holdfast_hooks.hook_errors import OnceLog
from holdfast_proto.black_box import BlackBoxWriter
from holdfast_proto.v1.common_pb2 import DIRECTION_RECV, DIRECTION_SEND, ChannelProgress, Direction

_WRAPPED: dict[str, Direction] = {"send": DIRECTION_SEND, "recv": DIRECTION_RECV}
_OUTSTANDING = 4096
"""Calls per channel whose completion is followed. An older one counts as completed once a newer one is."""

_NUMBERED = 4096
"""Point-to-point calls per group whose seqs are remembered."""


def _finished() -> None:
    """Take the place of the weak reference to a Work, for a call that raised: there is nothing to wait for."""


class SeqShift:
    """Counts the seqs that point-to-point calls used up in one group, to tell the seqs of collectives apart.

    Gloo numbers collectives and point-to-point calls with one counter per group. Two ranks that have made different
    numbers of sends and receives therefore give the same collective different seqs. Without the point-to-point calls
    before it, a collective has the same seq on all ranks.

    The training thread writes, the reporter reads. They need no lock, because each entry alone is a full answer.
    """

    def __init__(self) -> None:
        self._used: deque[tuple[int, int]] = deque(maxlen=_NUMBERED)
        self._count = 0

    def use(self, seq: int) -> None:
        """Note that a point-to-point call got ``seq`` (training thread)."""
        self._count += 1
        self._used.append((seq, self._count))

    def before(self, seq: int) -> int:
        """Return the number of point-to-point calls with a seq below ``seq``."""
        used = list(self._used)
        for used_seq, count in reversed(used):
            if used_seq < seq:
                return count
        return used[0][1] - 1 if used else 0


class _ProcessGroup(Protocol):
    """The part of torch's ProcessGroup that is used here. Its stub lacks the method."""

    @property
    def group_name(self) -> str: ...

    def _get_sequence_number_for_group(self) -> int: ...


class _Channel:
    __slots__ = ("box_index", "completed", "enqueued", "outstanding", "peer", "shift")

    def __init__(self, peer: int, box_index: int | None, shift: SeqShift) -> None:
        self.peer = peer
        """Global rank."""
        self.box_index = box_index
        self.shift = shift
        self.enqueued = 0
        self.completed = 0
        self.outstanding: deque[tuple[int, Callable[[], Any]]] = deque(maxlen=_OUTSTANDING)

    def advance(self) -> None:
        """Move ``completed`` past every call that is done, in order."""
        while self.outstanding:
            seq, reference = self.outstanding[0]
            work = reference()
            # The caller that waited for gloo's Work drops it, so a dead reference means a finished call.
            if work is not None and not work.is_completed():
                return
            self.outstanding.popleft()
            self.completed = seq


class PointToPointRecord:
    """Counts the sends and receives that this rank has made and finished with each peer, in each group."""

    def __init__(self, black_box: BlackBoxWriter | None, once: OnceLog) -> None:
        self._black_box = black_box
        self._once = once
        self._channels: dict[tuple[str, int, Direction], _Channel | None] = {}
        self._shifts: dict[str, SeqShift] = {}
        self.opening: list[object] = []
        """First calls on GPU tensors with a peer in a group that have not returned."""
        self._opened: set[object] = set()
        self._patches: dict[str, tuple[Any, Any]] = {}
        """The original and our wrapper, by name, as the class holds them: what getattr() returns would no longer be
        bound to a group."""
        self._closed = False

    def calls_before(self, group: str, seq: int) -> int:
        """Return the number of a group's point-to-point calls with a seq below ``seq`` (reporter thread)."""
        shift = self._shifts.get(group)
        return 0 if shift is None else shift.before(seq)

    def install(self) -> None:
        """Wrap the calls if torch.distributed is imported and they are not wrapped yet."""
        distributed = sys.modules.get("torch.distributed")
        if self._patches or self._closed or distributed is None or not distributed.is_available():
            return
        try:
            process_group = distributed.ProcessGroup
            # What every call reads: if torch has renamed it, the warning comes here and no call fails.
            _ = process_group.group_name, process_group._get_sequence_number_for_group
            for name, direction in _WRAPPED.items():
                original = vars(process_group)[name]
                wrapper = self._wrap(getattr(process_group, name), direction)
                setattr(process_group, name, wrapper)
                self._patches[name] = original, wrapper
        except (AttributeError, KeyError, TypeError) as error:
            self._once.warn("point-to-point calls are not recorded", error)

    def uninstall(self) -> None:
        """Put the original calls back, and record no more.

        Where another library has wrapped our wrapper, its patch stays, and ours only passes calls on.
        """
        self._closed = True
        for name, (original, wrapper) in self._patches.items():
            process_group = sys.modules["torch.distributed"].ProcessGroup
            if vars(process_group).get(name) is wrapper:
                setattr(process_group, name, original)
        self._patches = {}
        # The wrapper looks here first. An extra test in it would cost every call of a run that is not closed.
        self._channels.clear()

    def advance(self) -> list[ChannelProgress]:
        """Return the progress of all channels, and keep it in the black box (reporter thread)."""
        progress = []
        for (group, _, direction), channel in list(self._channels.items()):
            if channel is None:
                continue
            channel.advance()
            if self._black_box is not None and channel.box_index is not None:
                self._black_box.channel_completed(channel.box_index, channel.completed)
            progress.append(
                ChannelProgress(
                    group=group,
                    peer=channel.peer,
                    direction=direction,
                    enqueued=channel.enqueued,
                    completed=channel.completed,
                )
            )
        return progress

    def _wrap(self, original: Callable[..., Any], direction: Direction) -> Callable[..., Any]:
        channels, opening, opened = self._channels, self.opening, self._opened
        mark = None if self._black_box is None else self._black_box.call

        def call(group: _ProcessGroup, *arguments: Any, **keywords: Any) -> object:
            if len(arguments) < 2:  # torch gives tensors and peer by position; who does not must not fail because of us
                return original(group, *arguments, **keywords)
            tensors, peer = arguments[:2]
            key = (group.group_name, peer, direction)
            if not tensors[0].is_cpu:
                if key in opened:
                    return original(group, *arguments, **keywords)
                # Each of these is one operation of a list or a set, so that threads need no lock.
                opening.append(key)
                try:
                    return original(group, *arguments, **keywords)
                finally:
                    opening.remove(key)
                    opened.add(key)
            channel = channels[key] if key in channels else self._open(group, peer, direction)
            if channel is None:
                return original(group, *arguments, **keywords)
            seq = channel.enqueued = channel.enqueued + 1
            if mark is not None and channel.box_index is not None:
                mark(channel.box_index, seq, time_ns())
            seq_before = group._get_sequence_number_for_group()
            reference: Callable[[], Any] = _finished
            try:
                work = original(group, *arguments, **keywords)
                if work is not None:
                    reference = weakref.ref(work)
                return work
            finally:
                channel.outstanding.append((seq, reference))
                seq_after = group._get_sequence_number_for_group()
                if seq_after != seq_before:
                    channel.shift.use(seq_after)

        return call

    def _open(self, group: _ProcessGroup, peer: int, direction: Direction) -> _Channel | None:
        if self._closed:
            return None
        key = (group.group_name, peer, direction)
        try:
            global_peer = sys.modules["torch.distributed"].get_global_rank(group, peer)
            group._get_sequence_number_for_group()
        except (RuntimeError, ValueError, LookupError, AttributeError) as error:
            self._once.warn("point-to-point calls of one group are not recorded", error)
            self._channels[key] = None
            return None
        index = None
        if self._black_box is not None:
            index = self._black_box.add_channel(group.group_name, global_peer, direction)
        shift = self._shifts.setdefault(group.group_name, SeqShift())
        channel = self._channels[key] = _Channel(global_peer, index, shift)
        return channel

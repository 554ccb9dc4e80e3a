"""Layout of a rank's black box: a small mapped file that outlives the rank.

The rank writes it with plain memory stores: each costs well under a microsecond and needs neither a lock nor a system
call. The kernel keeps the pages of a mapped file when a process dies. So the agent can read the box after SIGKILL, or
while a thread of the rank holds Python's global lock. ::

    0       identity: magic, rank, world size, pid, finished, generation, run
    256     moment: step, phase, Unix time of the last change in ns
    512     last words: length, UTF-8 text
    8704    groups: name, newest enqueued seq, newest completed seq
    12800   channels (point-to-point): group, peer, direction, enqueued, completed
    22016   ring of the newest point-to-point calls: time, channel, seq
    28160   collectives that are pending for long: length, UTF-8 JSON [[group, seq, op, sizes, dtypes], ...]

Offsets are in bytes; all numbers are little-endian. Eight-byte fields are written by one store. A reader that meets the
writer half-way sees one field newer than its neighbour, never a torn number. A text has its length in front, which is
written after the text.
"""

import errno
import json
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

from holdfast_base.files import UnfitFileError, read_regular, replacement

MAGIC = b"HFBBOX\x00\x01"
SIZE = 32768
"""Bytes of a black box."""
GROUPS = 64
"""Most groups that a box has room for; further ones are not in it."""
CHANNELS = 128
"""Most point-to-point channels that a box has room for."""
CALLS = 256
"""Length of the ring of point-to-point calls."""

_IDENTITY = struct.Struct("<8sIIIIQ64s")
_FINISHED = struct.Struct("<I")
_FINISHED_OFFSET = 20
_MOMENT = struct.Struct("<qQQ")
_MOMENT_OFFSET = 256
_WORDS_OFFSET = 512
_WORDS_BYTES = 8192
_GROUP = struct.Struct("<48sQQ")
_GROUP_OFFSET = 8704
_CHANNEL = struct.Struct("<48sIIQQ")
_CHANNEL_OFFSET = 12800
_CALL = struct.Struct("<QIIQ")
_CALL_OFFSET = _CHANNEL_OFFSET + CHANNELS * _CHANNEL.size
_PENDING_OFFSET = _CALL_OFFSET + CALLS * _CALL.size
_PENDING_BYTES = 4096
_MOMENT_TRIES = 8
_PAIR = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")


class BlackBoxError(ValueError):
    """A file is no black box of this version, or changes too fast. The message names it."""


@dataclass(frozen=True)
class PointToPointCall:
    """One point-to-point call."""

    unix_ns: int
    """Unix time of the call in nanoseconds."""
    channel: int
    """Index of its channel."""
    seq: int
    """Number of the call in its channel."""


@dataclass(frozen=True)
class GroupMark:
    """Progress of the rank in one group: the newest seq that it enqueued, and the newest that is complete."""

    group: str
    enqueued: int
    completed: int


@dataclass(frozen=True)
class ChannelMark:
    """Progress of the rank in one point-to-point channel."""

    group: str
    peer: int
    """Rank at the other end."""
    direction: int
    """Direction, as in common.proto."""
    enqueued: int
    completed: int


@dataclass(frozen=True)
class NamedCall:
    """A collective call, with the Flight Recorder's names. The fields are those of PendingCall in common.proto."""

    group: str
    seq: int
    op: str
    sizes: str
    dtypes: str


@dataclass(frozen=True)
class Moment:
    """Where the training thread of a rank is."""

    pid: int
    """Process that writes the box."""
    step: int
    """Step that it is in; -1 before the first."""
    phase: int
    """Phase that it is in, as in common.proto."""
    changed_unix_ns: int
    """Unix time of the newest change of step or phase, in nanoseconds; 0: none."""


@dataclass(frozen=True)
class BlackBoxContents:
    """Contents of a black box."""

    run: str
    generation: int
    rank: int
    world_size: int
    pid: int
    finished: bool
    """Whether the rank had closed its hooks: it meant to leave."""
    step: int
    """Step that the training thread was in; -1 before the first."""
    phase: int
    """Phase that the training thread was in, as in common.proto."""
    changed_unix_ns: int
    """Unix time of the newest change of step or phase, in nanoseconds; 0: none."""
    last_words: str
    """End of the rank's traceback, or empty."""
    groups: tuple[GroupMark, ...]
    channels: tuple[ChannelMark, ...]
    calls: tuple[PointToPointCall, ...]
    """Newest point-to-point calls, oldest first."""
    pending: tuple[NamedCall, ...] = ()
    """Collectives that had been pending for long."""


class BlackBoxWriter:
    """Writes a rank's black box. It creates ``path`` with mode 0600 and fixed size, and replaces an older file.

    Raises OSError if the file cannot be created. ``path`` is then as it was.
    """

    def __init__(self, path: Path, *, run: str, generation: int, rank: int, world_size: int) -> None:
        # The box gets its name when it is complete, so that no reader finds half of one. An older file is replaced and
        # not truncated: a process that still has it mapped would die of SIGBUS.
        with replacement(path) as new:
            self._buffer = _mapped(new)
            self.moment: Callable[[int, int, int], None] = partial(_MOMENT.pack_into, self._buffer, _MOMENT_OFFSET)
            """Record the step and phase of the training thread: (step, phase, Unix time in ns). It is called several
            times a step, so it is the bare store, without a Python function around it."""
            self.moment(-1, 1, 0)
            pid = os.getpid()
            _IDENTITY.pack_into(self._buffer, 0, MAGIC, rank, world_size, pid, 0, generation, run.encode()[:64])
        self._groups = 0
        self._channels = 0
        self._calls = 0

    def finish(self) -> None:
        """Record that the rank means to leave."""
        _FINISHED.pack_into(self._buffer, _FINISHED_OFFSET, 1)

    def last_words(self, text: str) -> None:
        """Record the end of ``text``, the traceback of a rank that is about to end."""
        encoded = text.encode(errors="replace")[-(_WORDS_BYTES - 8) :]
        self._buffer[_WORDS_OFFSET + 8 : _WORDS_OFFSET + 8 + len(encoded)] = encoded
        _NUMBER.pack_into(self._buffer, _WORDS_OFFSET, len(encoded))

    def pending(self, calls: Sequence[NamedCall]) -> None:
        """Replace the collectives that have been pending for long. Those for which there is no room are left out."""
        texts = [json.dumps(astuple(call), separators=(",", ":")) for call in calls]
        while len(encoded := f"[{','.join(texts)}]".encode()) > _PENDING_BYTES - 8:
            texts.pop()
        # While the text changes, its length is 0: a reader finds no calls and not torn ones.
        _NUMBER.pack_into(self._buffer, _PENDING_OFFSET, 0)
        self._buffer[_PENDING_OFFSET + 8 : _PENDING_OFFSET + 8 + len(encoded)] = encoded
        _NUMBER.pack_into(self._buffer, _PENDING_OFFSET, len(encoded))

    def add_group(self, name: str) -> int | None:
        """Return the index of a new group, or None when the table is full."""
        if self._groups == GROUPS:
            return None
        index, self._groups = self._groups, self._groups + 1
        _GROUP.pack_into(self._buffer, _GROUP_OFFSET + index * _GROUP.size, name.encode()[:48], 0, 0)
        return index

    def group(self, index: int, enqueued: int, completed: int) -> None:
        """Record the newest seqs of a group that :meth:`add_group` returned."""
        _PAIR.pack_into(self._buffer, _GROUP_OFFSET + index * _GROUP.size + 48, enqueued, completed)

    def add_channel(self, group: str, peer: int, direction: int) -> int | None:
        """Return the index of a new channel, or None when the table is full."""
        if self._channels == CHANNELS:
            return None
        index, self._channels = self._channels, self._channels + 1
        offset = _CHANNEL_OFFSET + index * _CHANNEL.size
        _CHANNEL.pack_into(self._buffer, offset, group.encode()[:48], peer, direction, 0, 0)
        return index

    def call(self, channel: int, seq: int, unix_ns: int) -> None:
        """Record that the rank made call ``seq`` of a channel."""
        _NUMBER.pack_into(self._buffer, _CHANNEL_OFFSET + channel * _CHANNEL.size + 56, seq)
        _CALL.pack_into(self._buffer, _CALL_OFFSET + self._calls % CALLS * _CALL.size, unix_ns, channel, 0, seq)
        self._calls += 1

    def channel_completed(self, channel: int, seq: int) -> None:
        """Record that all calls of a channel up to ``seq`` are complete."""
        _NUMBER.pack_into(self._buffer, _CHANNEL_OFFSET + channel * _CHANNEL.size + 64, seq)


def _mapped(path: Path) -> mmap.mmap:
    """Create a file of zeros and return its pages.

    All of them are reserved: a store to a page that a full tmpfs cannot give kills the rank with SIGBUS.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SIZE)
        return mmap.mmap(descriptor, SIZE)
    finally:
        os.close(descriptor)


def read(path: Path) -> BlackBoxContents:
    """Return the contents of a black box, whose writer may be alive.

    Raises FileNotFoundError if there is none yet, another OSError if it cannot be read, BlackBoxError if it is no black
    box of this version.
    """
    try:
        data = read_regular(path, SIZE)
    except UnfitFileError as error:
        raise BlackBoxError(f"{path}: not a black box of this version: {error.strerror}") from None
    _check(path, data, SIZE)
    _, rank, world_size, pid, finished, generation, run = _IDENTITY.unpack_from(data, 0)
    step, phase, changed = _MOMENT.unpack_from(data, _MOMENT_OFFSET)
    words = min(_NUMBER.unpack_from(data, _WORDS_OFFSET)[0], _WORDS_BYTES - 8)
    groups = [_GROUP.unpack_from(data, _GROUP_OFFSET + i * _GROUP.size) for i in range(GROUPS)]
    channels = [_CHANNEL.unpack_from(data, _CHANNEL_OFFSET + i * _CHANNEL.size) for i in range(CHANNELS)]
    calls = [_CALL.unpack_from(data, _CALL_OFFSET + i * _CALL.size) for i in range(CALLS)]
    return BlackBoxContents(
        run=_text(run),
        generation=generation,
        rank=rank,
        world_size=world_size,
        pid=pid,
        finished=bool(finished),
        step=step,
        phase=phase,
        changed_unix_ns=changed,
        last_words=data[_WORDS_OFFSET + 8 : _WORDS_OFFSET + 8 + words].decode(errors="replace"),
        groups=tuple(GroupMark(_text(g[0]), g[1], g[2]) for g in groups if g[0][0]),
        channels=tuple(ChannelMark(_text(c[0]), *c[1:]) for c in channels if c[0][0]),
        calls=tuple(sorted((PointToPointCall(c[0], c[1], c[3]) for c in calls if c[0]), key=lambda call: call.unix_ns)),
        pending=_pending(data),
    )


def read_moment(path: Path) -> Moment:
    """Return where the training thread is, from a box whose writer may be alive. It costs three small reads.

    The writer stores step, phase and time one after the other, so the moment counts if two reads show the same one.
    Raises FileNotFoundError if there is none yet, another OSError if it cannot be read, BlackBoxError if it is no black
    box of this version, or changes too fast.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        identity = os.pread(descriptor, _IDENTITY.size, 0)
        _check(path, identity, _IDENTITY.size)
        before = os.pread(descriptor, _MOMENT.size, _MOMENT_OFFSET)
        for _ in range(_MOMENT_TRIES):
            after = os.pread(descriptor, _MOMENT.size, _MOMENT_OFFSET)
            if before == after and len(after) == _MOMENT.size:
                return Moment(_IDENTITY.unpack(identity)[3], *_MOMENT.unpack(after))
            before = after
    finally:
        os.close(descriptor)
    raise BlackBoxError(f"{path}: its step and phase change while they are read, or are not in it")


def _check(path: Path, data: bytes, least_bytes: int) -> None:
    """Raise FileNotFoundError if the box has no identity yet, BlackBoxError if it is not of this version.

    Hooks of another version may fill the file under its own name: it is empty at first, and then full of zeros.
    """
    if not data[: len(MAGIC)].strip(b"\x00"):
        raise FileNotFoundError(errno.ENOENT, "the black box is not complete", str(path))
    if len(data) < least_bytes or data[: len(MAGIC)] != MAGIC:
        raise BlackBoxError(f"{path}: not a black box of this version")


def _text(field: bytes) -> str:
    return field.rstrip(b"\x00").decode(errors="replace")


def _pending(data: bytes) -> tuple[NamedCall, ...]:
    length = _NUMBER.unpack_from(data, _PENDING_OFFSET)[0]
    text = data[_PENDING_OFFSET + 8 : _PENDING_OFFSET + 8 + min(length, _PENDING_BYTES - 8)]
    try:
        calls = tuple(NamedCall(*call) for call in json.loads(text or b"[]"))
    except (ValueError, TypeError, RecursionError):  # the writer was in the middle of it, or the rank has damaged it
        return ()
    return calls if all(map(_is_call, calls)) else ()


def _is_call(call: NamedCall) -> bool:
    texts = (call.group, call.op, call.sizes, call.dtypes)
    return type(call.seq) is int and 0 <= call.seq < 1 << 64 and all(isinstance(text, str) for text in texts)

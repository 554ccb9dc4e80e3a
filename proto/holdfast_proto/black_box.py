"""Layout of a rank's black box: a small mapped file that outlives the rank.

The rank writes it with plain memory stores, so that it costs well under a microsecond and needs neither
a lock nor a system call; the agent reads it after SIGKILL, or while the rank's GIL is held. ::

    0       identity: magic, rank, world size, pid, finished, generation, run
    256     moment: step, phase, Unix time of the last change in ns
    512     last words: length, UTF-8 text
    8704    groups: name, newest enqueued seq, newest completed seq
    12800   channels (point-to-point): group, peer, direction, enqueued, completed
    22016   ring of the newest point-to-point calls: time, channel, seq
    28160   collectives that are pending for long: length, UTF-8 JSON [[group, seq, op, sizes, dtypes], ...]

Eight-byte fields are written by one store; a reader that meets the writer half-way sees one field newer
than its neighbour, never a torn number.
"""

import json
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

MAGIC = b"HFBBOX\x00\x01"
SIZE = 32768
GROUPS = 64
CHANNELS = 128
CALLS = 256

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
_PAIR = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")


@dataclass(frozen=True)
class Call:
    """One point-to-point call."""

    unix_ns: int
    channel: int
    seq: int


@dataclass(frozen=True)
class GroupMark:
    """How far the rank was in one group."""

    group: str
    enqueued: int
    completed: int


@dataclass(frozen=True)
class ChannelMark:
    """How far the rank was in one point-to-point channel. ``direction``: as in common.proto."""

    group: str
    peer: int
    direction: int
    enqueued: int
    completed: int


@dataclass(frozen=True)
class NamedCall:
    """A collective call, as the Flight Recorder names it. Fields: see PendingCall in common.proto."""

    group: str
    seq: int
    op: str
    sizes: str
    dtypes: str


@dataclass(frozen=True)
class BlackBoxContents:
    """All that a black box tells."""

    run: str
    generation: int
    rank: int
    world_size: int
    pid: int
    finished: bool
    """The rank had closed its hooks: it meant to leave."""
    step: int
    phase: int
    changed_unix_ns: int
    last_words: str
    groups: tuple[GroupMark, ...]
    channels: tuple[ChannelMark, ...]
    calls: tuple[Call, ...]
    """Oldest first."""
    pending: tuple[NamedCall, ...] = ()


class BlackBoxWriter:
    """The rank's side. ``path`` is created with mode 0600 and fixed size, in the place of what was there."""

    def __init__(self, path: Path, *, run: str, generation: int, rank: int, world_size: int) -> None:
        path.unlink(missing_ok=True)  # not truncated: a process that still has it mapped would die of SIGBUS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SIZE)
            self._buffer = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        _IDENTITY.pack_into(self._buffer, 0, MAGIC, rank, world_size, os.getpid(), 0, generation, run.encode()[:64])
        self._groups = 0
        self._channels = 0
        self._calls = 0
        self.moment: Callable[[int, int, int], None] = partial(_MOMENT.pack_into, self._buffer, _MOMENT_OFFSET)
        """Record the step and phase that the training thread is in: (step, phase, Unix time in ns). A bare store,
        because it is called several times a step."""
        self.moment(-1, 1, 0)

    def finish(self) -> None:
        """Record that the rank means to leave."""
        _FINISHED.pack_into(self._buffer, _FINISHED_OFFSET, 1)

    def last_words(self, text: str) -> None:
        """Keep the end of ``text``: what the rank has to say before it ends."""
        encoded = text.encode(errors="replace")[-(_WORDS_BYTES - 8) :]
        self._buffer[_WORDS_OFFSET + 8 : _WORDS_OFFSET + 8 + len(encoded)] = encoded
        _NUMBER.pack_into(self._buffer, _WORDS_OFFSET, len(encoded))

    def pending(self, calls: Sequence[NamedCall]) -> None:
        """Record which collectives have been pending for long, as far as there is room, and forget those before."""
        texts = [json.dumps(astuple(call), separators=(",", ":")) for call in calls]
        while len(encoded := f"[{','.join(texts)}]".encode()) > _PENDING_BYTES - 8:
            texts.pop()
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
        """Record a group's newest seqs."""
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
        """Record that the ``seq``-th call of a channel was made."""
        _NUMBER.pack_into(self._buffer, _CHANNEL_OFFSET + channel * _CHANNEL.size + 56, seq)
        _CALL.pack_into(self._buffer, _CALL_OFFSET + self._calls % CALLS * _CALL.size, unix_ns, channel, 0, seq)
        self._calls += 1

    def channel_completed(self, channel: int, seq: int) -> None:
        """Record that all calls of a channel up to ``seq`` are complete."""
        _NUMBER.pack_into(self._buffer, _CHANNEL_OFFSET + channel * _CHANNEL.size + 64, seq)


def read(path: Path) -> BlackBoxContents:
    """Read a black box. Raises OSError if it cannot be opened, ValueError if it is not one."""
    data = path.read_bytes()
    if len(data) < SIZE or data[:8] != MAGIC:
        raise ValueError(f"{path}: not a black box of this version")
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
        calls=tuple(sorted((Call(c[0], c[1], c[3]) for c in calls if c[0]), key=lambda call: call.unix_ns)),
        pending=_pending(data),
    )


def _text(field: bytes) -> str:
    return field.rstrip(b"\x00").decode(errors="replace")


def _pending(data: bytes) -> tuple[NamedCall, ...]:
    length = _NUMBER.unpack_from(data, _PENDING_OFFSET)[0]
    text = data[_PENDING_OFFSET + 8 : _PENDING_OFFSET + 8 + min(length, _PENDING_BYTES - 8)]
    try:
        return tuple(NamedCall(*call) for call in json.loads(text or b"[]"))
    except ValueError:  # read while it was being written
        return ()

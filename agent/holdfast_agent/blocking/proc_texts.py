"""Parses what the kernel shows of descriptors, file locks and names. Does no I/O, and trusts nothing."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST_PATH = 1024
LONGEST_NAME = 64

MOST_DESCRIPTORS = 64
"""Descriptors of one poll() or select() that are looked at."""

POLL_ENTRY = struct.Struct("=ihh")
LOCK_BYTES = 20
"""Bytes of the memory around a futex that :func:`is_python_lock` needs, from 8 before it."""

_LOCK_WORDS = struct.Struct("=IIIII")
_LOCK_SIZES = (0x30, 0x40)
"""Sizes of the piece of memory of a lock: the smallest one that holds it, or the next, if that is all that is free."""

_SIZE_FLAGS = 0x5
"""Flags in the size of a piece: the piece before it is in use, and it is in an arena that is not the first."""

_ALIGNMENT = 16
_MOST_WAITING = 4096
_WRITE_BITS = 0o3
_DELETED = " (deleted)"
_LOCK = re.compile(r"\d+: *(->)? *(FLOCK|POSIX|OFDLCK) +\w+ +\w+ +(-?\d+) +\w+:\w+:(\d+) ")


@dataclass(frozen=True)
class DescriptorInfo:
    """The lines of /proc/PID/fdinfo/N that are needed here."""

    reads: bool = True
    writes: bool = True
    inode: int = 0
    watched: tuple[int, ...] = ()
    """Descriptors that an epoll instance watches."""
    process: int = 0
    """Process to which a pidfd refers; 0: it is none."""


@dataclass(frozen=True)
class LockEntry:
    """One line of /proc/locks."""

    number: int
    """Number of the lock that is held: those who wait for it have the same one."""
    waits: bool
    pid: int
    inode: int


def parse_descriptor_info(text: str) -> DescriptorInfo:
    """Parse /proc/PID/fdinfo/N. What is missing or garbage is left out."""
    fields: dict[str, str] = {}
    watched: list[int] = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
        if key.strip() == "tfd" and len(watched) < MOST_DESCRIPTORS:
            watched.append(_number(value.split()[0] if value.split() else ""))
    access = _number(fields.get("flags", ""), base=8) & _WRITE_BITS if "flags" in fields else 2
    return DescriptorInfo(
        reads=access != 1,
        writes=access != 0,
        inode=_number(fields.get("ino", "")),
        watched=tuple(watched),
        process=_number(fields.get("Pid", "")),
    )


def parse_locks(text: str) -> Iterator[LockEntry]:
    """Parse /proc/locks: the locks that are held, and those that are waited for."""
    for line in text.splitlines():
        found = _LOCK.match(line)
        if found is not None:
            number = int(line.partition(":")[0])
            yield LockEntry(number, found[1] is not None, int(found[3]), int(found[4]))


def holder_of(entries: Iterator[LockEntry], waiter: int, inode: int) -> int:
    """Return the process that holds the lock for which ``waiter`` waits; 0: not known. ``inode`` 0: of any file."""
    known = list(entries)
    waited = {each.number for each in known if each.waits and each.pid == waiter and inode in (0, each.inode)}
    holders = {each.pid for each in known if not each.waits and each.number in waited and each.pid > 0}
    return holders.pop() if len(holders) == 1 else 0


def parse_poll(data: bytes) -> list[int]:
    """Return the descriptors in an array of ``struct pollfd``."""
    whole = data[: len(data) // POLL_ENTRY.size * POLL_ENTRY.size]
    return [descriptor for descriptor, _, _ in POLL_ENTRY.iter_unpack(whole) if descriptor >= 0][:MOST_DESCRIPTORS]


def parse_select(data: bytes) -> list[int]:
    """Return the descriptors in an ``fd_set``."""
    return [8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1][:MOST_DESCRIPTORS]


def parse_string(data: bytes) -> str:
    """Return the text up to the first zero byte, as a path to show; empty if there is no end."""
    text, end, _ = data.partition(b"\0")
    return clean(text.decode(errors="replace"), LONGEST_PATH) if end else ""


def is_python_lock(address: int, data: bytes) -> bool:
    """Return whether a futex is a lock of Python that a thread waits for. ``data``: 20 bytes, from 8 before it.

    Such a lock is a semaphore of glibc in a piece of memory of its own: in front is the size of that piece, then come
    the value 0, the number of waiting threads, and a flag that is 0. Where gloo and torch wait, on condition variables,
    the futex is one of two words. The number of references is in front of the first word, and is not 0. The address of
    the second word is no multiple of 8, and that of a piece of memory is one of 16.
    """
    if len(data) != LOCK_BYTES or address % _ALIGNMENT:
        return False
    size, above, value, waiting, shared = _LOCK_WORDS.unpack(data)
    is_one = size & ~_SIZE_FLAGS in _LOCK_SIZES and above == value == shared == 0
    return is_one and 0 < waiting <= _MOST_WAITING


def parse_inode(link: str) -> int:
    """Return the number in ``socket:[123]``; 0: it is another kind of link."""
    found = re.fullmatch(r"[a-z]+:\[(\d{1,20})\]", link)
    return int(found[1]) if found else 0


def clean(text: str, most: int) -> str:
    """Return a name or a path for people: one line of limited length, without unprintable characters."""
    return "".join(each if each.isprintable() else "?" for each in text.removesuffix(_DELETED)[:most])


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return 0

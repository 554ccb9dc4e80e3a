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

"""The system calls in which a training thread may wait, and their arguments. Does no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

_X86_64 = {
    **{0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 6: "lstat", 7: "poll", 16: "ioctl", 17: "pread"},
    **{18: "pwrite", 19: "readv", 20: "writev", 21: "access", 23: "select", 26: "msync", 34: "pause", 35: "nanosleep"},
    **{40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg"},
    **{56: "clone", 58: "vfork", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 77: "ftruncate"},
    **{82: "rename", 83: "mkdir", 87: "unlink", 202: "futex", 217: "getdents", 230: "nanosleep", 232: "epoll_wait"},
    **{247: "waitid", 257: "openat", 258: "mkdirat", 262: "fstatat", 263: "unlinkat", 270: "select", 271: "poll"},
    **{281: "epoll_wait", 288: "accept", 295: "preadv", 296: "pwritev", 316: "renameat", 332: "statx"},
    **{435: "clone", 437: "openat", 439: "faccessat", 441: "epoll_wait"},
}
_AARCH64 = {
    **{22: "epoll_wait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat", 46: "ftruncate"},
    **{48: "faccessat", 56: "openat", 57: "close", 61: "getdents", 63: "read", 64: "write", 65: "readv", 66: "writev"},
    **{67: "pread", 68: "pwrite", 69: "preadv", 70: "pwritev", 71: "sendfile", 72: "select", 73: "poll"},
    **{79: "fstatat", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "nanosleep"},
    **{202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 220: "clone"},
    **{227: "msync", 242: "accept", 260: "wait4", 276: "renameat", 291: "statx", 435: "clone", 437: "openat"},
    **{439: "faccessat", 441: "epoll_wait"},
}
_NAMES: Mapping[str, Mapping[int, str]] = {"x86_64": _X86_64, "aarch64": _AARCH64}
"""Machine -> number -> name. Variants of one call share the name that people know."""

_OF_DESCRIPTOR = frozenset(
    {
        *{"read", "write", "pread", "pwrite", "readv", "writev", "preadv", "pwritev", "sendfile", "close", "ioctl"},
        *{"accept", "connect", "sendto", "recvfrom", "sendmsg", "recvmsg"},
        *{"fcntl", "flock", "fsync", "fdatasync", "ftruncate", "getdents"},
    }
)
"""Calls whose first argument is the descriptor on which they wait."""

WRITES = frozenset({"write", "pwrite", "writev", "pwritev", "sendto", "sendmsg"})
POLLS = frozenset({"poll", "select", "epoll_wait"})
SLEEPS = frozenset({"nanosleep", "pause"})
WAITS = frozenset({"wait4", "waitid"})

_PATH_FIRST = frozenset({"open", "stat", "lstat", "access", "rename", "mkdir", "unlink"})
_PATH_SECOND = frozenset({"openat", "mkdirat", "fstatat", "unlinkat", "renameat", "statx", "faccessat"})

_P_PID, _P_PIDFD = 1, 3
_F_SETLKW, _F_OFD_SETLKW = 7, 38
_LARGEST_INT = 2**31


@dataclass(frozen=True)
class SystemCall:
    """A system call with its arguments, as /proc shows them."""

    name: str
    """Empty: a call that has no name here."""
    arguments: tuple[int, ...]

    @property
    def descriptor(self) -> int | None:
        """Descriptor on which it waits; None: it names none, or several."""
        if self.name in _OF_DESCRIPTOR or self.name == "epoll_wait":
            return self.arguments[0]
        if self.name == "waitid" and self.arguments[0] == _P_PIDFD:
            return self.arguments[1]
        return None

    @property
    def locks_file(self) -> bool:
        """Whether it waits for the lock of a file."""
        return self.name == "flock" or (self.name == "fcntl" and self.arguments[1] in (_F_SETLKW, _F_OFD_SETLKW))

    @property
    def child(self) -> int | None:
        """Process for whose end it waits; None: for none, or for any child."""
        if self.name == "wait4" and 0 < self.arguments[0] < _LARGEST_INT:
            return self.arguments[0]
        if self.name == "waitid" and self.arguments[0] == _P_PID:
            return self.arguments[1]
        return None

    @property
    def path_address(self) -> int | None:
        """Address of the path that it looks up; None: it takes none."""
        if self.name in _PATH_FIRST:
            return self.arguments[0]
        return self.arguments[1] if self.name in _PATH_SECOND else None


def parse_call(text: str, machine: str) -> SystemCall | None:
    """Parse ``number arguments... sp pc`` of /proc/PID/task/TID/syscall; None: in no call, hidden, or garbage."""
    fields = text.split()
    if len(fields) != 9 or not fields[0].isdecimal():
        return None
    try:
        arguments = tuple(int(field, 16) for field in fields[1:7])
    except ValueError:
        return None
    return SystemCall(_NAMES.get(machine, {}).get(int(fields[0]), ""), arguments)

"""Reads the files of one process in /proc. What is gone, or must not be seen, is empty."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast_agent.blocking import proc_texts
from holdfast_agent.blocking.proc_texts import LONGEST_PATH, POLL_ENTRY, DescriptorInfo
from holdfast_agent.blocking.system_calls import SystemCall
from holdfast_agent.movement.process_table import read_file

_MOST_SELECTED = 1024


@dataclass(frozen=True)
class ProcessFiles:
    """The files of the process ``pid``."""

    pid: int
    proc: str = "/proc"

    def text(self, name: str) -> str:
        """Return a file of its folder."""
        return try_read(f"{self.proc}/{self.pid}/{name}")

    def link(self, descriptor: int) -> str:
        """Return what a descriptor refers to: a path, ``pipe:[123]`` or ``socket:[123]``."""
        try:
            return os.readlink(f"{self.proc}/{self.pid}/fd/{descriptor}")  # noqa: PTH115 - never follows the link
        except OSError:
            return ""

    def info(self, descriptor: int) -> DescriptorInfo:
        """Return how a descriptor is open."""
        return proc_texts.parse_descriptor_info(self.text(f"fdinfo/{descriptor}"))

    def descriptors(self, call: SystemCall) -> Iterator[int]:
        """Yield the descriptors on which a call waits."""
        first, second, third = call.arguments[:3]
        match call.name:
            case "poll":
                size = POLL_ENTRY.size * min(second, proc_texts.MOST_DESCRIPTORS)
                yield from proc_texts.parse_poll(self.memory(first, size))
            case "select":
                size = min(first, _MOST_SELECTED) // 8 + 1
                for address in (second, third):
                    yield from (each for each in proc_texts.parse_select(self.memory(address, size)) if each < first)
            case "epoll_wait":
                yield from self.info(first).watched
            case _ if call.descriptor is not None:
                yield call.descriptor

    def path(self, call: SystemCall, link: str) -> str:
        """Return the file of a call. ``link``: what its descriptor refers to. Files of devices are none."""
        if link.startswith("/") and not link.startswith("/dev/"):
            return link
        address = call.path_address
        return proc_texts.parse_string(self.memory(address, LONGEST_PATH)) if address else ""

    def memory(self, address: int, size: int) -> bytes:
        """Return bytes of its memory. That pauses nothing."""
        try:
            descriptor = os.open(f"{self.proc}/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, size, address) if address > 0 else b""
        except (OSError, OverflowError):
            return b""
        finally:
            os.close(descriptor)


def try_read(path: str, most: int = 0) -> str:
    """Return the start of a file of /proc: ``most`` bytes, or 4,096 if that is 0; empty if it cannot be read."""
    try:
        if not most:
            return read_file(path)
        with open(path, "rb") as file:  # noqa: PTH123 - as read_file()
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""

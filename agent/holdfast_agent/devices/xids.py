"""Xids: the errors that NVIDIA's driver writes to the kernel's log.

The numbers and their meaning are those of NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors/ (there:
"Analyzing Xid Errors with the Xid Catalog"). The phrases here are ours, and short. A number that is not in the table is
reported as a number.
"""

import re
from dataclasses import dataclass
from enum import Enum

from holdfast_agent.devices.gpu import kernel_bus_id

_LINE = re.compile(
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.\d)?[^)]*\): (?P<number>\d+)(?P<rest>.*)",
    re.IGNORECASE,
)
_PID = re.compile(r"\bpid='?(?P<pid>\d+)")
_LINE_CHARACTERS = 400


class XidKind(Enum):
    """What an Xid says about the GPU."""

    FATAL = "fatal"
    """The GPU, or a link of it, is broken or needs a reset: nothing that computes on it continues."""
    PROCESS = "process"
    """The work of one process was ended, most often for a fault of its program. The GPU is fine."""
    NOTICE = "notice"
    """Anything else: it is counted and nothing more."""


_TABLE: dict[int, tuple[XidKind, str]] = {
    13: (XidKind.PROCESS, "a kernel of the program failed on the GPU"),
    31: (XidKind.PROCESS, "the program used an address on the GPU that is not mapped"),
    32: (XidKind.PROCESS, "the program's commands to the GPU are corrupt"),
    43: (XidKind.PROCESS, "the driver ended the program's work on the GPU after an error"),
    45: (XidKind.NOTICE, "the driver cleaned up the work of a process that ended"),
    48: (XidKind.FATAL, "the GPU's memory has an error that ECC cannot correct"),
    62: (XidKind.FATAL, "a controller inside the GPU has halted"),
    63: (XidKind.NOTICE, "the GPU has marked a bad row of its memory for remapping"),
    64: (XidKind.FATAL, "the GPU could not remap a bad row of its memory"),
    74: (XidKind.FATAL, "an NVLink of the GPU failed"),
    79: (XidKind.FATAL, "the GPU has fallen off the bus"),
    92: (XidKind.NOTICE, "the GPU's memory has many errors that ECC corrects"),
    94: (XidKind.PROCESS, "the GPU's memory has an uncorrectable error, which is contained in one process"),
    95: (XidKind.FATAL, "the GPU's memory has an uncorrectable error, which is not contained"),
    119: (XidKind.FATAL, "the GPU's firmware (GSP) does not answer"),
    120: (XidKind.FATAL, "the GPU's firmware (GSP) failed"),
    140: (XidKind.FATAL, "the GPU's memory has an error from which it did not recover"),
    154: (XidKind.NOTICE, "the driver has changed what the GPU needs to recover"),
}


@dataclass(frozen=True)
class Xid:
    """One Xid of a GPU."""

    number: int
    line: str = ""
    """Line of the kernel's log; empty if NVML reported it."""
    bus_id: str = ""
    pid: int = 0
    """Process that it names; 0: none. A number of the initial pid namespace."""

    @property
    def kind(self) -> XidKind:
        """What it says about the GPU."""
        return _TABLE.get(self.number, (XidKind.NOTICE, ""))[0]

    @property
    def phrase(self) -> str:
        """Its meaning in a few words; empty if it is not in the table."""
        return _TABLE.get(self.number, (XidKind.NOTICE, ""))[1]


def xid_of(message: str) -> Xid | None:
    """Return the Xid that a line of the kernel's log reports; None if it is about something else."""
    found = _LINE.search(message)
    if found is None:
        return None
    pid = _PID.search(found["rest"])
    return Xid(
        number=int(found["number"]),
        line=message[found.start() :][:_LINE_CHARACTERS],
        bus_id=kernel_bus_id(found["bus"]),
        pid=int(pid["pid"]) if pid is not None else 0,
    )

"""What torch's NCCL recorder of one rank has noted, with times, so that a dump of any moment can be printed.

Names of functions without a file are those of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (read at cyyever/pytorch
0b10febc, about torch 2.10). FlightRecorder.hpp and FlightRecorderDetail.hpp are headers of torch 2.13. What misleads:

- A call is counted, then its communicator is made, then it is recorded (``collective``, ``pointToPoint``). A hang in
  between leaves no entry, no ``pg_config`` (``initNCCLComm``), and no ``pg_status`` of a group without other entries.
- Members of a coalesced group have no events and no work (``collective``, ``pointToPoint``): they stay scheduled.
- The entry that closes a batch of messages is no message by its flag, as ``initWork`` asks ``isP2POp(COALESCED)``. Its
  work counts as a message, so ``pg_status`` shows its ``p2p_seq_id`` (``endCoalescing``, ``workEnqueue``).
- The entry that closes a synchronous coalesced group has its end event on the group's own stream, not on the current
  one where the kernels are (``endCoalescing``). It is complete as soon as that stream is idle.
- ``pg_status`` holds the number of the work that was handled last, of either kind (``workEnqueue``, ``runLoop``). Only
  ``last_started`` never goes back.
- The watchdog looks each 0.1 s, so ``retired`` and ``last_completed`` lag, and stay behind when it is stuck
  (``runLoop``).
- The end event of a call that has not returned counts as complete (c10/cuda/CUDAEvent.h, ``CUDAEventCache``).
- With blocking wait nothing is enqueued, so nothing retires (``workEnqueue``).
- Under graph capture calls are counted, and most are not recorded. The coalesced fast path is, and its entry never
  moves (``collectiveCoalesced``). Replays run no host code.
- Start events exist with timing only (``WorkNCCL``), and are true when the stream is there, before any peer is.
- ``pg_id`` counts the groups of a process, and the ring holds the newest entries of all groups (FlightRecorder.hpp).
"""

from dataclasses import dataclass, field
from math import inf

from tests.simulation.nccl.actions import Group, Sizes
from tests.simulation.nccl.device import Operation


@dataclass(slots=True)
class Entry:
    """One entry of the ring."""

    record_id: int
    group: int
    """Index of the group in the program."""
    collective: int
    message: int
    """``p2p_seq_id``."""
    op_id: int
    name: str
    is_p2p: bool
    inputs: Sizes
    outputs: Sizes
    created_s: float
    operation: Operation | None
    """Whose events the entry holds. Members of a coalesced group have none (``collective``, ``pointToPoint``)."""
    returned_s: float = inf
    """When the call had recorded its end event and handed its work to the watchdog. Until then a query of the event is
    true: it comes from a cache, or was never created (c10/cuda/CUDAEvent.h)."""
    watched: bool = True
    """Whether ``workEnqueue`` gets it. Not for members of a coalesced group, nor with blocking wait."""
    status_number: int = 0
    """What ``pg_status`` shows of it: the work's ``seq_``, of messages for a batch (``initWork``)."""
    of_messages: bool = False
    """Whether it is a message or closes a batch of them."""


@dataclass(slots=True)
class _Counters:
    collective: int = 0
    message: int = 0
    op_id: int = 0


@dataclass
class Recorder:
    """The recorder of one rank."""

    rank: int
    groups: list[Group]
    blocking_wait: bool = False
    records_members: bool = True
    """Whether members of coalesced collectives get entries: since dump version 2.7 (pytorch #151238)."""
    entries: list[Entry] = field(default_factory=list)
    """All entries ever made. The ring is what a dump keeps of them."""
    ids: dict[int, int] = field(default_factory=dict)
    """Group -> ``pg_id``: a count of the groups that this process made, so it differs between ranks."""
    named_s: dict[int, float] = field(default_factory=dict)
    """Group -> when its first communicator was ready: only then ``pg_config`` has it (``initNCCLComm``)."""
    _counters: dict[int, _Counters] = field(default_factory=dict)

    def made_group(self, group: int) -> None:
        """Note that the process is a member of a new group."""
        self.ids[group] = len(self.ids)
        self._counters[group] = _Counters()

    def made_communicator(self, group: int, at_s: float) -> None:
        """Note that a communicator of a group is ready."""
        self.named_s.setdefault(group, at_s)

    def number_collective(self, group: int) -> None:
        """Count a collective. It happens before the communicator is made, so a hang there leaves no entry."""
        self._counters[group].collective += 1

    def number_messages(self, group: int) -> None:
        """Count a message or a batch of them."""
        self._counters[group].message += 1

    def collectives(self, group: int) -> int:
        """Return how many collectives were counted."""
        return self._counters[group].collective

    def record(
        self,
        group: int,
        name: str,
        inputs: Sizes,
        outputs: Sizes,
        *,
        created_s: float,
        operation: Operation | None,
        is_p2p: bool = False,
        in_batch: bool = False,
        closes: bool = False,
    ) -> Entry:
        """Note a call. ``in_batch``: it closes a batch of messages, whose work counts as a message."""
        counters = self._counters[group]
        if not closes:
            counters.op_id += 1  # ``endCoalescing`` does not bump it
        entry = Entry(
            record_id=len(self.entries),
            group=group,
            collective=counters.collective,
            message=counters.message,
            op_id=counters.op_id,
            name=f"nccl:{name}",
            is_p2p=is_p2p,  # of a closing entry false: ``isP2POp(COALESCED)`` in ``initWork``
            inputs=inputs,
            outputs=outputs,
            created_s=created_s,
            operation=operation,
            watched=operation is not None and not self.blocking_wait,
            status_number=counters.message if is_p2p or in_batch else counters.collective,
            of_messages=is_p2p or in_batch,
        )
        self.entries.append(entry)
        return entry

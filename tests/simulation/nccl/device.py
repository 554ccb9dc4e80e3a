"""Streams of a device and the communicators of NCCL, with the time at which each operation starts and ends.

Times follow from what an operation waits for, so there is no clock: an operation is resolved when everything before it
is. What is still unresolved when nothing can move is a deadlock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

Waiter = Callable[[], None]


@dataclass(slots=True, eq=False)
class Operation:
    """One operation in a stream of a rank."""

    rank: int
    ready_s: float
    run: Callable[["Operation"], None]
    """Called once when the stream reaches the operation."""
    start_s: float = inf
    """When the stream reached it. Infinite: not yet."""
    done_s: float = inf
    waiters: list[Waiter] = field(default_factory=list)
    transfers: "list[Transfer]" = field(default_factory=list)
    collective: "Rendezvous | None" = None
    leaves_early: bool = False
    """Whether it is the root's part of a broadcast that fits into the buffers of the others."""
    never_ends: bool = False
    """Whether it stays on its device when it has ended on all other members."""
    _unmet: int = 0

    def after(self, others: "tuple[Operation, ...]") -> bool:
        """Wait for other operations. Return whether all of them are done."""
        for other in others:
            if other.done_s < inf:
                self.ready_s = max(self.ready_s, other.done_s)
            else:
                self._unmet += 1
                other.waiters.append(lambda other=other: self._met(other))  # type: ignore[misc]
        return not self._unmet

    def _met(self, other: "Operation") -> None:
        self.ready_s = max(self.ready_s, other.done_s)
        self._unmet -= 1
        if not self._unmet:
            self.start()

    def start(self) -> None:
        """Let the stream reach the operation."""
        self.start_s = self.ready_s
        self.run(self)


@dataclass(slots=True)
class Rendezvous:
    """The k-th collective of a communicator: it ends when the kernels of all members run."""

    communicator: "Communicator"
    index: int
    fits: dict[int, tuple[object, ...]] = field(default_factory=dict)
    """What each member called, by rank."""
    started: dict[int, Operation] = field(default_factory=dict)

    @property
    def mismatched(self) -> bool:
        """Whether members called different things."""
        return len(set(self.fits.values())) > 1


@dataclass(slots=True)
class Transfer:
    """The k-th message from one rank to another on a communicator."""

    key: tuple[int, int]
    """Global ranks: from, to."""
    index: int
    sender: Operation | None = None
    receiver: Operation | None = None
    done_s: float = inf
    eager: bool = False


@dataclass
class Communicator:
    """A NCCL communicator: of a group, or of two ranks of a group for unbatched messages."""

    group: int
    members: tuple[int, ...]
    broken_from_s: float = inf
    """Nothing that starts later ends: a network fault."""
    broken_pair: tuple[int, int] | None = None
    """The fault hits the messages between two ranks only."""
    ready_s: float | None = None
    arrivals: dict[int, float] = field(default_factory=dict)
    rendezvous: list[Rendezvous] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)
    """Collectives by rank."""
    transfers: dict[tuple[int, int], list[Transfer]] = field(default_factory=dict)
    counts: dict[tuple[int, int, bool], int] = field(default_factory=dict)
    """(from, to, is_send) -> messages called."""
    last: dict[int, Operation] = field(default_factory=dict)
    """Newest operation of each rank: NCCL runs the operations of a communicator in order."""


class Network:
    """Ends collectives and transfers when all sides have started, and wakes who waits for them."""

    def __init__(self, collective_s: float, transfer_s: float, eager_numel: int) -> None:
        self.collective_s, self.transfer_s, self.eager_numel = collective_s, transfer_s, eager_numel
        self.dies_s: dict[int, float] = {}
        """Time at which the process of a rank ends."""
        self.woken: deque[Waiter] = deque()

    def finish(self, operation: Operation, done_s: float) -> None:
        """End an operation and queue its waiters, unless its process is dead by then."""
        if done_s > self.dies_s.get(operation.rank, inf):
            return
        operation.done_s = done_s
        self.woken.extend(operation.waiters)
        operation.waiters.clear()

    def join(self, operation: Operation, rendezvous: Rendezvous) -> None:
        """Let the kernel of a member run."""
        communicator, started = rendezvous.communicator, rendezvous.started
        if operation.start_s >= self.dies_s.get(operation.rank, inf):
            return
        started[operation.rank] = operation
        if operation.leaves_early and operation.start_s < communicator.broken_from_s:
            self.finish(operation, operation.start_s + self.collective_s)
        if len(started) < len(communicator.members) or rendezvous.mismatched:
            return
        start_s = max(member.start_s for member in started.values())
        done_s = start_s + self.collective_s
        if start_s >= communicator.broken_from_s and communicator.broken_pair is None:
            return
        if any(done_s > self.dies_s.get(rank, inf) for rank in started):
            return
        for member in started.values():
            if member.done_s == inf and not member.never_ends:
                self.finish(member, done_s)

    def transfer(self, operation: Operation, communicator: Communicator) -> None:
        """Let one side of its transfers run."""
        if operation.start_s >= self.dies_s.get(operation.rank, inf):
            return
        for transfer in operation.transfers:
            sender, receiver = transfer.sender, transfer.receiver
            if sender is operation and transfer.eager:
                pass  # the data fit into NCCL's buffers, so the sender does not wait
            elif sender is None or receiver is None or max(sender.start_s, receiver.start_s) == inf:
                continue
            if sender is None or sender.start_s == inf:
                continue
            start_s = max(sender.start_s, receiver.start_s if receiver and not transfer.eager else 0.0)
            broken = communicator.broken_pair in (None, transfer.key, transfer.key[::-1])
            if start_s >= communicator.broken_from_s and broken:
                continue
            done_s = start_s + self.transfer_s
            if any(done_s > self.dies_s.get(side, inf) for side in transfer.key):
                continue
            transfer.done_s = done_s
            self._end_if_done(sender)
            if receiver is not None and receiver.start_s < inf:
                self._end_if_done(receiver)

    def _end_if_done(self, operation: Operation) -> None:
        done_s = max(transfer.done_s for transfer in operation.transfers)
        if done_s < inf and operation.done_s == inf:
            self.finish(operation, max(done_s, operation.start_s))

"""All communicators of a machine: how they are made, and which calls meet on them."""

from math import prod

from tests.simulation.nccl.actions import Collective, Group, Messages
from tests.simulation.nccl.device import Communicator, Network, Operation, Rendezvous, Transfer
from tests.simulation.nccl.recorder import Recorder

Break = tuple[float, tuple[int, int] | None]
"""Time of a network fault, and the two ranks that it hits. None: all of the group."""


INIT_S = 0.01
"""Seconds that NCCL needs to make a communicator."""


class Communicators:
    """Communicators by group, and by group and pair for unbatched messages without eager init."""

    def __init__(
        self, groups: list[Group], recorders: list[Recorder], network: Network, broken: dict[int, Break]
    ) -> None:
        self._groups, self._recorders, self._network, self._broken = groups, recorders, network, broken
        self._known: dict[tuple[int, int, int], Communicator] = {}

    def all(self) -> list[Communicator]:
        """Return all communicators that any rank has asked for."""
        return list(self._known.values())

    def get(self, group: int, pair: tuple[int, int] | None = None) -> Communicator:
        """Return the communicator of a group or of a pair in it. It may not be made yet."""
        key = (group, *(pair or (-1, -1)))
        known = self._known.get(key)
        if known is None:
            known = Communicator(group, pair or self._groups[group].members)
            if group in self._broken:
                known.broken_from_s, known.broken_pair = self._broken[group]
            self._known[key] = known
        return known

    def make_eagerly(self, group: int, at_s: float) -> None:
        """Make the communicator of a new group, if it is not there."""
        communicator = self.get(group)
        if communicator.ready_s is None:
            self._make(communicator, at_s)

    def arrive(self, communicator: Communicator, rank: int, now_s: float) -> bool:
        """Let a host call into a communicator. Return False if it must wait for other members (``initNCCLComm``)."""
        if communicator.ready_s is None:
            communicator.arrivals.setdefault(rank, now_s)
            if len(communicator.arrivals) < len(communicator.members):
                return False
            self._make(communicator, max(communicator.arrivals.values()) + INIT_S)
        return True

    def _make(self, communicator: Communicator, at_s: float) -> None:
        communicator.ready_s = at_s
        for rank in communicator.members:
            self._recorders[rank].made_communicator(communicator.group, at_s)

    def join(self, communicator: Communicator, rank: int, action: Collective, now_s: float) -> Operation:
        """Return the operation with which a rank joins its next collective."""
        index = communicator.calls.get(rank, 0)
        communicator.calls[rank] = index + 1
        if index == len(communicator.rendezvous):
            communicator.rendezvous.append(Rendezvous(communicator, index))
        rendezvous = communicator.rendezvous[index]
        rendezvous.fits[rank] = action.fits
        operation = Operation(rank, now_s, lambda own: self._network.join(own, rendezvous))
        operation.collective = rendezvous
        small = sum(map(prod, action.inputs)) <= self._network.eager_numel
        operation.never_ends = action.never_ends
        operation.leaves_early = action.op == "broadcast" and small and rank == communicator.members[0]
        return operation

    def exchange(self, communicator: Communicator, rank: int, action: Messages, now_s: float) -> Operation:
        """Return the operation of a message or of a batch of them."""
        operation = Operation(rank, now_s, lambda own: self._network.transfer(own, communicator))
        for part in action.parts:
            key = (rank, part.peer) if part.is_send else (part.peer, rank)
            index = communicator.counts.get((*key, part.is_send), 0)
            communicator.counts[*key, part.is_send] = index + 1
            known = communicator.transfers.setdefault(key, [])
            if index == len(known):
                known.append(Transfer(key, index))
            transfer = known[index]
            if part.is_send:
                transfer.sender, transfer.eager = operation, part.numel <= self._network.eager_numel
            else:
                transfer.receiver = operation
            operation.transfers.append(transfer)
        return operation

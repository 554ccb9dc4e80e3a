"""The store of one world: its first member serves it, and the world counts once all its members have come there.

A node that dies while it waits is seen for the time of a lease, so a world may form with it. torchrun itself would fail
on such a world. Here the others give it up, and wait for the next one.
"""

from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo

from holdfast_proto.v1.meeting_pb2 import MeetingWorld

STORE_TIMEOUT = timedelta(seconds=60)
"""Longest wait of torchrun for another node in a store, as in torch."""
MEMBERS_TIMEOUT = timedelta(seconds=15)
"""Longest wait for the other members of a world that has just formed."""


class WorldStores:
    """The stores of the worlds of one torchrun. It serves that of its newest world, or has joined another node's."""

    def __init__(self, run: str, address: str) -> None:
        self._run = run
        self._address = address
        """Address of this node."""
        self._server: TCPStore | None = None

    def serve(self) -> int:
        """Serve the store of the next world, and return its port, which the kernel chooses."""
        self._server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=STORE_TIMEOUT)
        return self._server.port

    def enter(self, world: MeetingWorld, rank: int) -> RendezvousInfo:
        """Wait for all members of a world in its store, and return this node's place.

        Raises torch.distributed.DistError if the store is gone, or if not all come.
        """
        if self._server is None or rank != 0 or self._server.port != world.store_port:
            self._server = None
        store = self._server or TCPStore(
            world.members[0].address, world.store_port, is_master=False, timeout=STORE_TIMEOUT
        )
        prefixed = PrefixStore(f"holdfast/{self._run}/{world.round}", store)
        if prefixed.add("members", 1) == len(world.members):
            prefixed.set("complete", "1")
        prefixed.wait(["complete"], MEMBERS_TIMEOUT)
        # Ranks get a store of their own on a free port of the first node: see HoldfastRendezvous.use_agent_store.
        bootstrap = RendezvousStoreInfo.build(rank, prefixed, self._address)
        return RendezvousInfo(prefixed, rank, len(world.members), bootstrap)

    def close(self) -> None:
        """Serve no more."""
        self._server = None

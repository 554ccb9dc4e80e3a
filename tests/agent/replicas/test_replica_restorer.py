"""What a start from replica snapshots leaves behind if it fails."""

import asyncio
import socket
import threading

import pytest

from holdfast_agent.replicas.replica_exchange import ReplicaWire
from holdfast_agent.replicas.replica_restorer import ReplicaRestorer
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_base.processes import AgentError
from holdfast_proto.v1.store_pb2 import ReplicaHolder, StartGeneration
from tests.agent.replicas.conftest import SEAL, Node
from tests.support.snapshots import RUN

PATIENCE_S = 60.0


def keep_waiting(listener: socket.socket, ended: threading.Event) -> None:
    """Greet as a holder does, and then say nothing."""
    with ReplicaWire(listener.accept()[0], SEAL, "rank 0", is_server=True) as wire:
        wire.greet()
        ended.wait(PATIENCE_S)


def test_a_start_that_fails_waits_for_no_holder_that_is_silent(node: Node, port: int) -> None:
    """The agent ends only after its threads: one that waits for a lost node would keep it for minutes."""
    memory = SnapshotMemory(node.shm, node.shm / "slots", RUN, "node")
    restorer = ReplicaRestorer(node.store, memory, SEAL)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = {0: silent.getsockname()[1], 1: port}  # the partner answers that it has no such shard
        holders = [ReplicaHolder(rank=rank, address=f"127.0.0.1:{ports[rank]}") for rank in ports]
        start = StartGeneration(step=10, replica_generation=1, replica_holders=holders)
        ended = threading.Event()
        threading.Thread(target=keep_waiting, args=(silent, ended), daemon=True).start()

        def run() -> None:
            with pytest.raises(AgentError, match=r"rank 1, step 10, cannot be fetched: .* is not here"):
                asyncio.run(restorer.starting_point(start, range(2), generation=2))
            ended.set()

        threading.Thread(target=run, daemon=True).start()
        assert ended.wait(PATIENCE_S)

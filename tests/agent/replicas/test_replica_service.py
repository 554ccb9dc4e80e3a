"""The replica snapshots of a node as a whole: where it is reached, and what its ranks start from."""

import asyncio
import dataclasses
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.processes.containment import Errors
from holdfast_agent.replicas.replica_server import ReplicaServer
from holdfast_agent.replicas.replica_service import ReplicaService, open_replicas
from holdfast_base.processes import AgentError
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.replicas.conftest import WORLD, Node, tensors
from tests.checkpoint.conftest import contents
from tests.support.coroutines import PATIENCE_S
from tests.support.nodes import RUN, RecordedNode, make_node
from tests.support.run_keys import seal_of, write_key

SPEC = store.RunSpec(
    run=RUN, nodes=2, ranks_per_node=2, command=["true"], instance="i", snapshot_every=1, replicate_every_s=1.0
)


def opened(made: RecordedNode, address: str = "127.0.0.1") -> ReplicaService | None:
    options = dataclasses.replace(made.options, replica_address=address)
    return open_replicas(options, SPEC, made.memory, Errors())


@pytest.fixture
def made(tmp_path: Path) -> RecordedNode:
    """A node without a key."""
    return make_node(tmp_path / "agent")


@pytest.fixture
def key(made: RecordedNode) -> None:
    write_key(made.options.directory, RUN)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.usefixtures("key")
def test_other_nodes_reach_the_node_at_the_address_that_was_set(made: RecordedNode) -> None:
    port = free_port()
    for address, told in {
        "127.0.0.1": "127.0.0.1:*",
        f"localhost:{port}": f"localhost:{port}",
        f"[::1]:{port}": f"[::1]:{port}",
        "[::1]": "[::1]:*",
        "": "localhost:*",  # towards a store behind a unix socket
    }.items():
        service = opened(made, address)
        assert service is not None
        assert service.state().address == told.replace("*", str(service.server.port))
        service.close()


def test_without_the_key_there_are_no_replica_snapshots(made: RecordedNode, caplog: pytest.LogCaptureFixture) -> None:
    assert opened(made) is None
    (line,) = caplog.messages
    assert line.startswith("no replica snapshots: there is no key of run run at ")
    assert "--replica-address" not in line


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("127.0.0.1:{port}", "127.0.0.1:{port} cannot be used: .*Address already in use.*: set --replica-address"),
        ("a..b", "a..b:0 cannot be used: .*: set --replica-address"),
        ("a:99999", "'a:99999' is no address: use HOST, HOST:PORT or "),
    ],
)
def test_an_address_that_cannot_be_used_is_named_in_one_line(
    host: str, problem: str, made: RecordedNode, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        assert opened(made, host.format(port=port)) is None
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert re.search(problem.format(port=port), record.getMessage())


class Starting:
    """A node whose ranks are to start from replica snapshots. The step of its slots is 7."""

    def __init__(self, made: RecordedNode, own: Node, holder: Node, port: int) -> None:
        service = opened(made)
        assert service is not None
        own.root, own.store = service.replicas._root, service.replicas
        self.service, self.memory = service, made.memory
        self.own, self.holder = own, holder
        self.address = f"127.0.0.1:{port}"
        self.checkpoints: NodeCheckpoints = dataclasses.replace(made.checkpoints, replicas=service)
        for rank in (0, 1):
            own.snapshots.fill(self.memory.grant(rank, 1 << 16, 2, 3).paths[0], rank, 7, persist=False)

    async def start(self, step: int, *fetched: int, generation: int = 1) -> dict[int, Path]:
        holders = [store.ReplicaHolder(rank=rank, address=self.address) for rank in fetched]
        start = store.StartGeneration(
            ranks=2, world_size=WORLD, source=store.SOURCE_REPLICA, step=step,
            replica_generation=generation, replica_holders=holders,
        )  # fmt: skip
        return dict((await self.checkpoints.starting_point(start, (0, 1), 9)).slots)

    def steps(self) -> list[list[int]]:
        return [self.memory.complete_steps(rank) for rank in (0, 1)]


@pytest.fixture
def starting(made: RecordedNode, key: None, node: Node, partner: Node) -> Iterator[Starting]:
    server = ReplicaServer(partner.store, seal_of(RUN), "127.0.0.1")
    starting = Starting(made, node, partner, server.port)
    yield starting
    starting.service.close()
    server.close()


async def test_ranks_start_from_shards_of_the_node_and_from_fetched_ones_with_their_base(starting: Starting) -> None:
    starting.own.save(0, 20)
    starting.own.save(0, 30)  # of a state that is undone
    starting.holder.save(1, 10)
    starting.holder.save(1, 20, base=10)
    slots = await starting.start(20, 1)
    assert {rank: contents(path) for rank, path in slots.items()} == {rank: tensors(rank, 20) for rank in (0, 1)}
    assert {header.generation for path in slots.values() if (header := starting.memory.header(path))} == {9}
    assert starting.steps() == [[20], [20]]
    assert starting.own.held() == {(10, 1): [1], (20, 1): [0, 1]}


async def test_a_damaged_shard_is_not_fetched_and_the_slots_stay(starting: Starting) -> None:
    starting.own.save(0, 20)
    starting.holder.save(1, 20)
    starting.holder.flip(1, 20)
    with pytest.raises(AgentError, match=r"of rank 1, step 20, cannot be fetched: .*does not match its digest"):
        await starting.start(20, 1)
    assert starting.steps() == [[7], [7]]
    assert (starting.holder.held(), starting.own.held()) == ({}, {(20, 1): [0]})


async def test_a_shard_that_nobody_holds_and_one_of_another_generation_are_missing(starting: Starting) -> None:
    starting.own.save(0, 20)
    starting.own.save(1, 20, generation=2)
    with pytest.raises(AgentError, match="no node is known that holds a replica snapshot of rank 1, step 20"):
        await starting.start(20)
    with pytest.raises(AgentError, match=r"rank 1, step 20, cannot be fetched: .*rank 1 and step 20 is not here"):
        await starting.start(20, 1)
    starting.address = f"127.0.0.1:{free_port()}"
    with pytest.raises(AgentError, match=r"rank 1, step 20, cannot be fetched: .*cannot be reached"):
        await starting.start(20, 1)
    assert starting.steps() == [[7], [7]]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_start_that_fails_or_ends_leaves_no_fetch_behind(is_cancelled: bool, starting: Starting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        starting.address = f"127.0.0.1:{silent.getsockname()[1]}"
        task = asyncio.create_task(starting.start(20, *((0, 1) if is_cancelled else (0,))))
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            if is_cancelled:
                task.cancel()
            with pytest.raises(asyncio.CancelledError if is_cancelled else AgentError):
                await task
            connection.settimeout(PATIENCE_S)
            while await asyncio.to_thread(connection.recv, 1 << 10):
                pass  # it closes the connection
    assert starting.steps() == [[7], [7]]


async def test_a_damaged_shard_of_the_node_itself_is_used_by_no_rank_and_the_others_stay(starting: Starting) -> None:
    for rank in (0, 1):
        starting.own.save(rank, 20)
    starting.own.flip(0, 20)
    with pytest.raises(AgentError, match=r"the replica snapshot of rank 0 cannot be used: .*does not match its digest"):
        await starting.start(20)
    assert starting.memory.complete_steps(0) == []
    assert await asyncio.to_thread(starting.own.store.find, 0, 20) is None
    assert starting.own.held() == {(20, 1): [1]}


async def test_a_node_without_replica_snapshots_starts_from_none(made: RecordedNode) -> None:
    start = store.StartGeneration(ranks=2, world_size=2, source=store.SOURCE_REPLICA, step=20)
    with pytest.raises(AgentError, match="this node takes no replica snapshots: see its log"):
        await made.checkpoints.starting_point(start, (0, 1), 9)

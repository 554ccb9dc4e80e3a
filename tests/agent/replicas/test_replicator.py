"""Replica snapshots of a node's ranks: written, sent and reported, or given up without harm to a rank."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.checkpoints.worker import save_replica
from holdfast_agent.processes.containment import Errors
from holdfast_agent.replicas import replica_store, replicator
from holdfast_agent.replicas.replicator import Replicator
from holdfast_agent.snapshots.memory_room import Room
from holdfast_agent.snapshots.snapshot_memory import SnapshotMemory
from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.codec.codec_registry import Compression
from holdfast_checkpoint.store.object_store import Bandwidth
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.replicas.conftest import SEAL, WORLD, Node, tensors
from tests.support.coroutines import until
from tests.support.snapshots import RUN
from tests.support.virtual_time import on_virtual_time

RANKS = (0, 1)
OWN_ADDRESS = "0.0.0.0:5000"


class OneWorker:
    """Does the work of worker processes in a thread, after ``before``."""

    def __init__(self, limit: int, *, background: bool) -> None:
        assert (limit >= 1, background) == (True, True)

    @staticmethod
    async def before() -> None:
        """Do nothing."""

    async def run(self, task: str, *, directory: Path, slot: str, **arguments: Any) -> None:
        """Write a shard."""
        assert task == "write_replica"
        await self.before()
        await asyncio.to_thread(save_replica, directory=str(directory), slot=slot, **arguments)

    def close(self) -> None:
        """Do nothing."""


class Maker:
    """A node whose two ranks leave snapshots in their slots."""

    def __init__(self, node: Node, port: int) -> None:
        self.node = node
        self.port = port
        self.errors = Errors()
        self.memory = SnapshotMemory(node.shm, node.shm / "disk", RUN, "node")
        for rank in RANKS:
            self.memory.grant(rank, 4 << 20, len(RANKS), 3)
        self.replicator = Replicator(
            node.store, self.memory, SEAL, self.errors,
            run=RUN, address=OWN_ADDRESS, bandwidth=Bandwidth(), compression=Compression.ALWAYS, writers=2,
        )  # fmt: skip

    def name_itself(self, step: int) -> bool:
        """Name a step with the node's own address as that of its partner."""
        return self.replicator.begin(store.Replicate(step=step, partner="b", address=OWN_ADDRESS), RANKS, WORLD)

    def name(self, step: int, *, port: int | None = None, kept_step: int | None = None) -> bool:
        """Name a step, as the leader does."""
        address = f"127.0.0.1:{self.port if port is None else port}"
        command = store.Replicate(step=step, partner="b", address=address, kept_step=kept_step)
        return self.replicator.begin(command, RANKS, WORLD)

    def pin(self, rank: int, step: int) -> None:
        """Leave a pinned snapshot in a slot that is not pinned."""
        free = [path for path in self.memory.slots(rank) if not (self.memory.header(path) or pytest.fail()).replica]
        self.node.snapshots.fill(free[0], rank, step, tensors=tensors(rank, step), persist=False, replica=True)

    def take(self, rank: int, step: int) -> None:
        """Let a rank pin and report the snapshot of a step."""
        self.pin(rank, step)
        self.replicator.taken(rank, step, pinned=True)

    @property
    def pinned(self) -> list[tuple[int, int]]:
        """Rank and step of the slots that are pinned."""
        headers = [self.memory.header(path) for rank in RANKS for path in self.memory.slots(rank)]
        return [(header.rank, header.step) for header in headers if header is not None and header.replica]

    @property
    def said(self) -> dict[str, object]:
        """What the node's state says."""
        message = store.NodeReplicas()
        self.replicator.describe(message)
        return {field.name: value for field, value in message.ListFields()}

    @property
    def counted(self) -> tuple[int, int]:
        """Attempts and failures."""
        return self.replicator.counters.attempts, self.replicator.counters.failures

    @property
    def is_idle(self) -> bool:
        return not self.replicator._jobs.running


@pytest.fixture
def maker(node: Node, port: int, monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.setattr(replicator, "CheckpointWorkers", OneWorker)
    return Maker(node, port)


def before(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Awaitable[None]]) -> None:
    monkeypatch.setattr(OneWorker, "before", staticmethod(do))


async def test_a_step_is_reported_once_the_snapshots_of_all_ranks_are_on_both_nodes(
    maker: Maker, node: Node, partner: Node
) -> None:
    assert maker.said == {}
    assert maker.name(10)
    maker.take(0, 10)
    await until(lambda: partner.held() == {(10, 1): [0]} and maker.is_idle, "the first is there")
    assert maker.said == {"wanted_step": 10}
    maker.take(1, 10)
    await until(lambda: maker.said.get("replicated_step") == 10, "both are there")
    assert node.held() == partner.held() == {(10, 1): [0, 1]}
    assert (maker.pinned, maker.counted) == ([], (2, 0))
    assert maker.replicator.counters.sent_bytes == partner.store.held_bytes
    assert not maker.name(10)
    for rank in RANKS:
        partner.expect_state(rank, 10)


async def test_a_partner_that_never_answers_holds_up_neither_slot_nor_the_next_step(
    maker: Maker, partner: Node
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        maker.name(10, port=silent.getsockname()[1])
        maker.take(0, 10)
        connection, _ = await asyncio.to_thread(silent.accept)
        with connection:
            assert maker.pinned == []  # it is released before the file is sent
            assert maker.name(20)
            for rank in RANKS:
                maker.take(rank, 20)
            await until(lambda: maker.said.get("replicated_step") == 20, "the next step is done")
    assert partner.held()[20, 1] == [0, 1]
    assert (maker.pinned, maker.counted, sum(maker.errors.unexpected.values())) == ([], (3, 0), 0)


async def test_a_rank_without_a_slot_to_spare_fails_the_step_once_and_all_slots_are_released(
    maker: Maker, partner: Node
) -> None:
    maker.name(10)
    maker.pin(0, 10)
    maker.replicator.taken(1, 10, pinned=False)
    maker.replicator.taken(1, 10, pinned=False)
    assert (maker.said, maker.pinned) == ({"wanted_step": 10, "failed": True}, [])
    maker.take(0, 10)  # its report comes late
    assert (maker.pinned, maker.counted, partner.held(), maker.is_idle) == ([], (0, 1), {}, True)
    assert not maker.name(10)
    assert maker.name(20)
    assert maker.said == {"wanted_step": 20}


async def test_snapshots_of_steps_that_are_not_named_are_released(maker: Maker, partner: Node) -> None:
    maker.take(0, 10)
    maker.name(20)
    maker.take(0, 10)
    maker.replicator.taken(1, 19, pinned=False)  # a snapshot of its own
    maker.replicator.fail(10, "late")
    assert (maker.said, maker.pinned, maker.counted) == ({"wanted_step": 20}, [], (0, 0))


def test_a_rank_that_works_on_a_later_step_without_a_report_fails_the_step(
    maker: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    @on_virtual_time
    async def run() -> None:
        loop = asyncio.get_running_loop()

        def steps() -> dict[int, int]:
            return {0: 99, 1: 10 if loop.time() < 3600.0 else 11}

        maker.name(10)
        maker.replicator._target.begun.add(0)  # type: ignore[union-attr]
        await maker.replicator.await_ranks(10, steps)
        assert 3600.0 < loop.time() < 3700.0  # a long step is no reason

    run()
    assert maker.said == {"wanted_step": 10, "failed": True}
    assert "no replica snapshots of step 10: ranks [1] have not taken its snapshot" in caplog.text


def test_nobody_waits_for_ranks_once_another_step_is_named(maker: Maker) -> None:
    @on_virtual_time
    async def run() -> None:
        maker.name(10)
        waiting = asyncio.create_task(maker.replicator.await_ranks(10, dict))
        await asyncio.sleep(3600.0)
        assert not waiting.done()
        maker.name(20)
        await waiting

    run()
    assert (maker.said, maker.counted) == ({"wanted_step": 20}, (0, 0))


def test_a_partner_that_cannot_be_reached_is_tried_again_and_then_the_step_has_failed_once(
    maker: Maker, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    @on_virtual_time
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        maker.name(10, port=port)
        for rank in RANKS:
            maker.take(rank, 10)
        await until(lambda: maker.said.get("failed"), "it has failed")
        await until(lambda: maker.is_idle, "all have given up")

    run()
    assert (maker.counted, maker.pinned, node.held()) == ((2, 1), [], {(10, 1): [0, 1]})
    assert "Connection refused" in caplog.text
    assert caplog.text.count("sent again") >= 4
    assert caplog.text.count("there are no replica snapshots") == 1


async def test_a_later_step_keeps_the_complete_one_and_drops_older_ones(maker: Maker, node: Node) -> None:
    for step in (5, 10):
        node.save(0, step)
    maker.name(20, kept_step=10)
    assert node.held() == {(10, 1): [0]}
    maker.name(30)
    assert node.held() == {}


async def test_another_generation_ends_what_is_under_way_and_may_name_the_same_step(
    maker: Maker, node: Node, partner: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await gate.wait()

    before(monkeypatch, wait)
    maker.name(10)
    maker.take(0, 10)
    await begun.wait()
    maker.replicator.forget()
    assert maker.said == {}
    gate.set()
    await until(lambda: maker.is_idle, "the writer has ended")
    assert (maker.pinned, partner.held(), maker.counted) == ([], {}, (1, 0))
    assert maker.name(10)
    for rank in RANKS:
        maker.take(rank, 10)
    await until(lambda: maker.said.get("replicated_step") == 10, "the same step is done")
    maker.replicator.forget()
    assert maker.said == {}


@pytest.mark.parametrize(("error", "unexpected"), [(CheckpointError("no space left"), 0), (KeyError("a case"), 1)])
async def test_a_worker_that_fails_fails_the_step_and_releases_the_slot(
    error: Exception, unexpected: int, maker: Maker, partner: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise error

    before(monkeypatch, fail)
    maker.name(10)
    maker.pin(1, 10)
    maker.take(0, 10)
    await until(lambda: maker.is_idle, "it has failed")
    assert (maker.said, maker.pinned) == ({"wanted_step": 10, "failed": True}, [])
    assert (maker.counted, maker.errors.unexpected["replicas"], partner.held()) == ((1, 1), unexpected, {})


async def test_without_room_in_memory_nothing_is_written(
    maker: Maker, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_store, "memory_room", lambda _: Room(1, "/dev/shm", "enlarge it"))
    maker.name(10)
    maker.take(0, 10)
    await until(lambda: maker.is_idle, "it has failed")
    assert (maker.said, maker.pinned, node.held()) == ({"wanted_step": 10, "failed": True}, [], {})
    assert "rank 0: no room for a replica snapshot" in caplog.text


async def test_a_slot_that_was_overwritten_is_no_replica_snapshot(maker: Maker, node: Node) -> None:
    maker.name(10)
    maker.replicator.taken(0, 10, pinned=True)
    await until(lambda: maker.is_idle, "it has failed")
    assert (maker.said, node.held()) == ({"wanted_step": 10, "failed": True}, {})


async def test_an_end_of_the_agent_while_a_snapshot_is_written_is_no_error(
    maker: Maker, partner: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def close() -> None:
        maker.replicator.close()

    before(monkeypatch, close)
    maker.name(10)
    maker.take(0, 10)
    await until(lambda: maker.is_idle, "it has ended")
    assert (sum(maker.errors.unexpected.values()), maker.pinned, partner.held()) == (0, [], {})


async def test_a_node_is_never_its_own_partner(maker: Maker, caplog: pytest.LogCaptureFixture) -> None:
    """All nodes may have been given such an address: what they send would come back, and count as a second copy."""
    for step in (10, 20):
        assert not maker.name_itself(step)
        assert maker.said == {"wanted_step": step, "failed": True}
    assert caplog.text.count(f"b has the address of this node, {OWN_ADDRESS}, too") == 1

"""The leader's command to make replica snapshots: all ranks are asked, and what they report is sent."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast_agent.processes.containment import Errors
from holdfast_agent.rank_messages import RankMessages
from holdfast_agent.replicas.replica_server import ReplicaServer
from holdfast_agent.replicas.replica_service import ReplicaService, open_replicas
from holdfast_agent.replicas.replica_store import ReplicaStore
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.commands.test_command_runner import GENERATION, Desk
from tests.support.answering_rank import answering
from tests.support.coroutines import until
from tests.support.nodes import RUN, begin
from tests.support.run_keys import seal_of, write_key
from tests.support.snapshots import Snapshots

STEP = 20
WORLD = 2


class ReplicaDesk(Desk):
    """A leader's place for a node that makes replica snapshots."""

    def __init__(self, folder: Path, snapshots: Snapshots) -> None:
        super().__init__(folder)
        self.snapshots = snapshots
        node = self.node
        node.spec.MergeFrom(store.RunSpec(snapshot_every=1, replicate_every_s=1.0))
        write_key(node.options.directory, RUN)
        service = open_replicas(node.options, node.spec, node.memory, Errors())
        assert service is not None
        self.service: ReplicaService = service
        node.checkpoints = dataclasses.replace(node.checkpoints, replicas=service)
        node.messages = RankMessages(node, node.checkpoints, node.link.emit)
        for rank in node.ranks:
            node.memory.grant(rank, 1 << 16, 2, 3)

    async def replicate(self, port: int = 1) -> None:
        """Name the step, with a partner on this machine."""
        await self.give(replicate=store.Replicate(step=STEP, partner="b", address=f"127.0.0.1:{port}"))

    @contextlib.asynccontextmanager
    async def session(
        self, number: int, *, accepted: bool = True, replica: bool = True
    ) -> AsyncIterator[list[session.RankCommand]]:
        """Let a rank take each snapshot that it is asked for, and report it."""

        async def take(command: session.RankCommand) -> None:
            step = command.snapshot_at.step
            slot = self.node.memory.slots(number)[0]
            self.snapshots.fill(slot, number, step, generation=GENERATION, persist=False, replica=replica)
            report = session.Report(snapshots=[session.SnapshotTaken(step=step, replica=replica)])
            await self.node.messages.receive(rank, session.RankMessage(report=report))

        rank = self.node.ranks[number]
        detail = "" if accepted else f"rank {number}: too late"
        async with answering(
            self.node, rank, accepted=accepted, detail=detail, then=take if accepted else None
        ) as commands:
            yield commands

    @property
    def said(self) -> tuple[int, bool, int]:
        """Newest step of the node's state that was named, whether it has failed, and the step that is done; or -1."""
        state = self.service.state()
        return state.wanted_step, state.failed, state.replicated_step if state.HasField("replicated_step") else -1

    def pinned(self) -> list[int]:
        """Ranks with a pinned slot."""
        return [rank for rank in self.node.ranks if self.node.memory.pinned_for_replica(rank, STEP)]


@pytest.fixture
def replica_desk(folder: Path, snapshots: Snapshots) -> Iterator[ReplicaDesk]:
    desk = ReplicaDesk(folder, snapshots)
    yield desk
    desk.service.close()


async def test_all_ranks_pin_the_step_and_their_snapshots_reach_the_partner(
    replica_desk: ReplicaDesk, tmp_path: Path
) -> None:
    desk = replica_desk
    (tmp_path / "partner").mkdir()
    partner = ReplicaStore(tmp_path / "partner" / "node" / "replicas", tmp_path / "partner", RUN)
    server = ReplicaServer(partner, seal_of(RUN), "127.0.0.1")
    async with desk.session(0) as of_first, desk.session(1) as of_second:
        await desk.replicate(server.port)
        await until(lambda: desk.said[2] == STEP, "the set is complete")
        await desk.replicate(server.port)
        await desk.give()
    wanted = session.SnapshotAt(step=STEP, replica=True)
    assert [command.snapshot_at for command in (*of_first, *of_second)] == [wanted, wanted]  # once
    assert [(one.step, one.generation, list(one.ranks)) for one in partner.held()] == [(STEP, GENERATION, [0, 1])]
    assert (desk.said, desk.pinned()) == ((STEP, False, STEP), [])
    assert desk.reported == ["evidence_captured"]
    await asyncio.to_thread(server.close)


@pytest.mark.parametrize(
    ("how", "reason"),
    [({"accepted": False}, "rank 1: too late"), ({"replica": False}, "rank 1 has no slot to spare for it")],
    ids=["refused", "no-slot"],
)
async def test_a_rank_that_takes_no_part_fails_the_step_and_no_slot_stays_pinned(
    how: dict[str, bool], reason: str, replica_desk: ReplicaDesk, caplog: pytest.LogCaptureFixture
) -> None:
    desk = replica_desk
    async with desk.session(0) as of_first, desk.session(1, **how):
        await desk.replicate()
        await until(lambda: desk.said[1], "it has failed")
        await until(lambda: of_first and not desk.pinned(), "the other rank has its slot back")
    assert (desk.said, desk.service.replicator.counters.failures) == ((STEP, True, -1), 1)
    assert f"there are no replica snapshots of step {STEP}: {reason}" in caplog.text
    assert desk.reported == []


async def test_a_late_refusal_does_not_fail_the_same_step_of_the_next_generation(replica_desk: ReplicaDesk) -> None:
    desk = replica_desk
    asked = list(desk.node.ranks.values())
    for rank in asked:
        rank.channel.outbox = asyncio.Queue()
    await desk.replicate()
    await until(lambda: desk.unacknowledged == WORLD, "both are asked")
    desk.service.begin_generation(-1)
    begin(desk.node, GENERATION + 1, {0: 1, 1: 1})
    first, second = desk.node.ranks.values()
    async with answering(desk.node, first), answering(desk.node, second):
        named = store.Replicate(step=STEP, partner="b", address="127.0.0.1:1")
        await desk.give(generation=GENERATION + 1, replicate=named)
        await until(lambda: desk.said[0] == STEP and not desk.unacknowledged, "both are asked again")
        for rank in asked:
            message = await rank.channel.outbox.get()  # type: ignore[union-attr]
            assert message is not None
            rank.channel.acknowledge(session.CommandAck(id=message.command.id, accepted=False, detail="it ends"))
        await until(lambda: desk.commands._jobs.running == 1, "the old command is done, the new one waits")
        assert desk.said == (STEP, False, -1)
        desk.service.replicator.forget()
        await until(lambda: not desk.commands._jobs.running, "nobody waits")


async def test_a_node_that_makes_none_ignores_the_command(folder: Path) -> None:
    desk = Desk(folder)
    async with answering(desk.node, desk.node.ranks[0]) as commands:
        await desk.give(replicate=store.Replicate(step=STEP, partner="b", address="127.0.0.1:1"))
        await desk.give()
    assert (commands, desk.reported) == ([], ["evidence_captured"])

"""Carries the leader's commands out: each once, and none from an older leader or generation."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator

from holdfast_agent.commands.checks import LARGEST, flaw
from holdfast_agent.commands.injection import inject, refuse
from holdfast_agent.evidence import gathering
from holdfast_agent.node import Node
from holdfast_agent.supervisor import Supervisor
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

ACK_PATIENCE_S = 5.0

_SEEN_KEPT = 10_000

HARMLESS = ("gather_evidence", "finish")
"""What may be ordered of a node whose ranks somebody else has launched."""


class Orders:
    """Where a NodeCommand is obeyed or refused."""

    def __init__(self, node: Node, supervisor: Supervisor) -> None:
        self._node = node
        self._supervisor = supervisor
        self._seen: dict[str, None] = {}
        """Ids of the newest commands, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.finished: asyncio.Future[store.FinishRun] = asyncio.get_running_loop().create_future()
        """How the daemon has ended the run, once it has."""

    async def handle(self, command: store.NodeCommand, stream_id: str) -> None:
        """Obey or refuse one command. Whatever comes of it, the next one can be handled."""
        with self._node.errors.contained("commands"):
            refusal = self._refusal(command)
            if refusal:
                self._refuse(command, refusal)
            elif command.id not in self._seen:
                self._remember(command.id)
                self._node.fence = command.fence
                await self._obey(command)
        self._supervisor.done(stream_id)

    def refuse_entry(self, stream_id: str, reason: str) -> None:
        """Refuse an entry of the stream that is no command."""
        with self._node.errors.contained("commands"):
            self._refuse(store.NodeCommand(), reason)
        self._supervisor.done(stream_id)

    def _refuse(self, command: store.NodeCommand, reason: str) -> None:
        is_new = self._node.errors.refuse("commands", f"{command.WhichOneof('kind') or 'a command'}: {reason}")
        if not is_new and command.instance != self._node.spec.instance:
            return  # a stream may be full of another run's commands: the daemon hears of the first
        refused = store.CommandRefused(command_fence=command.fence, known_fence=self._node.fence, reason=reason)
        generation = min(command.generation, LARGEST)
        self._node.link.emit(store.Event(generation=generation, command_refused=refused))
        if command.HasField("inject_fault"):
            refuse(self._node, command.inject_fault, generation, reason)

    def _remember(self, identity: str) -> None:
        self._seen[identity] = None
        while len(self._seen) > _SEEN_KEPT:
            del self._seen[next(iter(self._seen))]

    def _refusal(self, command: store.NodeCommand) -> str:
        """Return why a command is refused, or ""."""
        return next(self._refusals(command), "")

    def _refusals(self, command: store.NodeCommand) -> Iterator[str]:
        node, kind = self._node, command.WhichOneof("kind")
        if command.instance != node.spec.instance or not command.instance:
            named = f"instance {command.instance[:64]!r}" if command.instance else "no instance"
            yield f"it is for {named} of the run, this one is {node.spec.instance!r}"
        found = flaw(command, node.spec)
        if found:
            yield found
        if command.fence < node.fence:
            yield f"its leader has fence {command.fence}, a newer one has {node.fence}"
        if node.observes and kind not in HARMLESS:
            yield "its ranks were launched by somebody else: they are watched and never touched"
        if command.generation < node.generation and kind != "finish":
            yield f"it is about generation {command.generation}, this node is at {node.generation}"

    async def _obey(self, command: store.NodeCommand) -> None:
        node = self._node
        log.info("generation %d: %s", command.generation, command.WhichOneof("kind"))
        match command.WhichOneof("kind"):
            case "start":
                if command.generation > node.generation:
                    await self._supervisor.start(command.generation, command.start)
            case "stop":
                await self._supervisor.stop()
                node.changed.set()
            case "gather_evidence":
                captured = await self._gather(command.gather_evidence)
                node.link.emit(store.Event(generation=command.generation, evidence_captured=captured))
            case "take_checkpoint":
                self._begin(self._take_checkpoint(command.take_checkpoint.step))
            case "keep_checkpoint":
                self._begin(node.writer.keep(command.keep_checkpoint.step, command.keep_checkpoint.reason))
            case "persist_snapshot":
                self._persist(command.persist_snapshot.step)
            case "release_snapshot":
                self._begin(self._release(command.release_snapshot))
            case "finish":
                if not self.finished.done():
                    self.finished.set_result(command.finish)
            case "inject_fault":
                self._begin(inject(node, command.inject_fault))
            case "leave":
                self._leave(command.leave.step)

    async def _gather(self, order: store.GatherEvidence) -> store.EvidenceCaptured:
        try:
            return await gathering.gather(self._node, order)
        except OSError as error:
            log.error("evidence of %s cannot be kept: %s", order.incident or order.suspicion, error)
        except Exception as error:  # noqa: BLE001  the daemon waits for the answer
            self._node.errors.note("evidence", error)
        suspicion = "" if order.incident else order.suspicion
        return store.EvidenceCaptured(incident=order.incident, suspicion=suspicion)

    def _begin(self, job: Coroutine[None, None, None]) -> None:
        """Do something that takes a while beside the next orders."""

        async def contained() -> None:
            with self._node.errors.contained("commands"):
                await job

        task = asyncio.create_task(contained())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _persist(self, step: int) -> None:
        for rank in self._node.ranks:
            self._node.writer.persist(rank, step, self._node.start_order.world_size)

    def _leave(self, step: int) -> None:
        """Have every rank leave its training loop at the end of ``step``; the daemon sees whether it does."""
        for rank in self._node.ranks.values():
            if rank.is_alive:
                self._node.command(rank, session.RankCommand(stop_at=session.StopAt(step=step)))

    async def _release(self, order: session.ReleaseAt) -> None:
        """Have every rank let go of a checkpoint's slot at the agreed step; if one does not hear of it, time will."""
        node = self._node
        ranks = [rank for rank in node.ranks.values() if rank.is_alive]
        asked = [node.command(rank, session.RankCommand(release_at=order)) for rank in ranks]
        if any(ack.cancelled() for ack in asked):
            return
        done, late = await asyncio.wait(asked, timeout=ACK_PATIENCE_S) if asked else (set(), set())
        if not late and all(ack.result().accepted for ack in done):
            node.writer.held.ordered(order.step)

    async def _take_checkpoint(self, step: int) -> None:
        """Ask every rank for a persistent snapshot at the end of ``step``; all must take it, or none counts."""
        node = self._node
        ranks = [rank for rank in node.ranks.values() if rank.is_alive]
        asked = [node.command(rank, session.RankCommand(snapshot_at=session.SnapshotAt(step=step))) for rank in ranks]
        reasons = [
            f"rank {rank.rank} has no session" for rank, ack in zip(ranks, asked, strict=True) if ack.cancelled()
        ]
        waiting = [ack for ack in asked if not ack.cancelled()]
        done, late = await asyncio.wait(waiting, timeout=ACK_PATIENCE_S) if waiting else (set(), set())
        reasons += [ack.result().detail for ack in done if not ack.result().accepted]
        if late:
            reasons.append(f"{len(late)} ranks have not answered within {ACK_PATIENCE_S:.0f} s")
        if not ranks:
            reasons.append("no rank is alive")
        if reasons:
            failed = store.CheckpointFailed(step=step, reason=f"ordered checkpoint: {reasons[0]}")
            node.link.emit(store.Event(generation=node.generation, checkpoint_failed=failed))

"""Carries out the leader's commands: each one once, and none from an older leader or generation."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.commands.checks import REPEATED, Known, refusal
from holdfast_agent.commands.fault_commands import ACK_PATIENCE_S, FaultCommands
from holdfast_agent.commands.live_evidence import LiveEvidence
from holdfast_agent.commands.node_checks import NodeChecks
from holdfast_agent.commands.rank_ends import end_ranks
from holdfast_agent.commands.replica_commands import ReplicaCommands
from holdfast_agent.evidence.gathering import EvidenceGatherer
from holdfast_agent.evidence.ras_client import RasError
from holdfast_agent.evidence.ras_report import ask_of
from holdfast_agent.node import Node
from holdfast_agent.processes.containment import BackgroundJobs
from holdfast_agent.processes.rank import Rank
from holdfast_agent.rank_supervisor import RankSupervisor
from holdfast_base.threads import in_daemon_thread
from holdfast_proto.limits import LARGEST_COUNT
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)

_SEEN_KEPT = 10_000
TURN_S = 10.0
"""Time after which later commands no longer wait for ranks that start or stop. A rank may hang in the kernel, where
nothing ends it: evidence of the others must not wait for that."""


class CommandRunner:
    """Refuses a NodeCommand or carries it out."""

    def __init__(
        self,
        node: Node,
        supervisor: RankSupervisor,
        checkpoints: NodeCheckpoints,
        emit: Callable[[store.Event], None],
        *,
        node_checks: NodeChecks,
        on_state: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_state`` is called when the state for ranks of another launcher is prepared."""
        self._node = node
        self._supervisor = supervisor
        self._saver = checkpoints.saver
        self._replicator = checkpoints.replicator
        self._replicas = ReplicaCommands(node, checkpoints)
        self._emit = emit
        self._node_checks = node_checks
        self._on_state = on_state
        self._injector = FaultCommands(node, emit)
        self._evidence = EvidenceGatherer(node, checkpoints.inventory.primary.path)
        self._live = LiveEvidence(node, emit)
        self._jobs = BackgroundJobs(node.errors, "commands")
        self._moves = BackgroundJobs(node.errors, "commands")
        """Starts and stops of ranks."""
        self._seen: dict[str, None] = {}
        """Ids of the newest commands, oldest first."""
        self.finished: asyncio.Future[store.FinishRun] = asyncio.get_running_loop().create_future()
        """The daemon's command that ends the run, once it has arrived."""

    async def handle(self, command: store.NodeCommand, number: int, stream_id: str) -> None:
        """Refuse one command or carry it out. Whatever happens, the next one can be handled."""
        with self._node.errors.contained("commands"):
            reason = refusal(command, self._node.spec, self._known(), number=number, now_unix_s=time.time())
            if reason:
                self._refuse(command, reason)
                self._supervisor.record.last_command = stream_id  # not saved each time: there may be many
                return
            self._node.fence, self._node.command_number = command.fence, number
            if command.id not in self._seen:  # the leader repeats a command until it sees the effect
                self._remember(command.id)
                await self._carry_out(command)
        self._supervisor.record.done(stream_id)

    def _known(self) -> Known:
        node = self._node
        return Known(fence=node.fence, number=node.command_number, generation=node.generation, observes=node.observes)

    def refuse_entry(self, stream_id: str, reason: str) -> None:
        """Refuse an entry of the stream that is no command."""
        with self._node.errors.contained("commands"):
            self._refuse(store.NodeCommand(), reason)
            self._supervisor.record.last_command = stream_id

    def _refuse(self, command: store.NodeCommand, reason: str) -> None:
        is_new = self._node.errors.refuse("commands", f"{command.WhichOneof('kind') or 'a command'}: {reason}")
        if not is_new and (reason == REPEATED or command.instance != self._node.spec.instance):
            return  # a stream may be full of such entries: the daemon hears of the first only
        refused = store.CommandRefused(command_fence=command.fence, known_fence=self._node.fence, reason=reason)
        generation = min(command.generation, LARGEST_COUNT)
        self._emit(store.Event(generation=generation, command_refused=refused))
        if command.HasField("inject_fault"):
            self._injector.refuse(command.inject_fault, generation, reason)

    def _remember(self, identity: str) -> None:
        self._seen[identity] = None
        while len(self._seen) > _SEEN_KEPT:
            del self._seen[next(iter(self._seen))]

    async def _carry_out(self, command: store.NodeCommand) -> None:
        """Carry out one command. Those that take a while run in the background, next to later commands."""
        log.info("generation %d: %s", command.generation, command.WhichOneof("kind"))
        match command.WhichOneof("kind"):
            case "start" | "stop":
                await asyncio.wait([self._moves.begin(self._move(command))], timeout=TURN_S)
            case "gather_evidence":
                if command.gather_evidence.ras_pids:
                    self._jobs.begin(self._ask_ras(command))
                captured = await self._gather(command.gather_evidence)
                self._emit(store.Event(generation=command.generation, evidence_captured=captured))
            case "persist_snapshot":
                self._persist(command.persist_snapshot.step)
            case "persist_replicas":
                self._replicas.persist(command.persist_replicas)
                if self._node.observes:  # its ranks wait for the state, and the leader repeats this until it is there
                    self._supervisor.say_preparing()
            case "finish":
                if not self.finished.done():
                    self.finished.set_result(command.finish)
            case "leave" | "end_ranks":
                self._end(command)
            case "spike_found":
                self._command_ranks(spike_found=command.spike_found)
            case _:
                self._jobs.begin(self._background(command))

    async def end_moves(self) -> None:
        """Give up starts and stops that are not done: the agent ends, and its own stop must not wait for them.

        The same holds for replica snapshots that are not written yet, and for a check of the node.
        """
        await self._moves.end()
        await self._replicas.end()
        await self._node_checks.end()

    async def _move(self, command: store.NodeCommand) -> None:
        """Start or stop ranks. The supervisor does one after another."""
        await self._replicas.end()  # no job may write the state of a world while the next one begins
        await self._node_checks.end()  # ranks that start would slow it down, and it them
        if command.HasField("stop"):
            await self._supervisor.stop()
            if command.generation > self._node.generation:  # it will not start here: the leader waits for that word
                self._node.failed_generation, self._node.failure = command.generation, "it was stopped before it began"
            self._node.changed.set()
        elif self._node.observes:
            if command.start.run_generation > self._node.restored_generation:
                await self._supervisor.start(command.start.run_generation, command.start)
                self._on_state()
        elif command.generation > self._node.generation:
            await self._supervisor.start(command.generation, command.start)

    async def _background(self, command: store.NodeCommand) -> None:
        match command.WhichOneof("kind"):
            case "take_checkpoint":
                await self._take_checkpoint(command.take_checkpoint.step)
            case "replicate":
                await self._replicate(command.replicate)
            case "keep_checkpoint":
                await self._saver.keep(command.keep_checkpoint.step, command.keep_checkpoint.reason)
            case "prove_checkpoint":
                await self._saver.prove(command.prove_checkpoint.step, command.prove_checkpoint.finite_step)
            case "inject_fault":
                await self._injector.inject(command.inject_fault)
            case "take_stacks":
                await self._live.take_stacks(command)
            case "take_profile":
                await self._live.take_profile(command)
            case "check_node" if self._moves.running:
                log.info("the node is not checked: its ranks start or stop")
            case "check_node":
                self._node_checks.begin(command.check_node.id)

    def _live_ranks(self) -> list[Rank]:
        return [rank for rank in self._node.ranks.values() if rank.is_alive]

    async def _gather(self, command: store.GatherEvidence) -> store.EvidenceCaptured:
        try:
            return await self._evidence.gather(command)
        except OSError as error:
            log.error("evidence of %s cannot be kept: %s", command.incident or command.suspicion, error)
        except Exception as error:  # noqa: BLE001  the daemon waits for the answer
            self._node.errors.note("evidence", error)
        suspicion = "" if command.incident else command.suspicion
        return store.EvidenceCaptured(incident=command.incident, suspicion=suspicion)

    async def _ask_ras(self, command: store.NodeCommand) -> None:
        """Pass on what NCCL's RAS says of ranks. Nothing waits for it: RAS takes seconds for what does not answer.

        Ranks that a restart ends meanwhile do not answer either, so that then its words mean nothing.
        """
        alive = [rank.pid for rank in self._live_ranks()]
        try:
            words = await in_daemon_thread(lambda: ask_of(alive[0], command.gather_evidence.ras_pids)) if alive else []
        except RasError as error:
            log.info("NCCL's RAS was asked: %s", error)
            return
        if words and [rank.pid for rank in self._live_ranks()] == alive:
            said = session.WitnessWords(run=self._node.spec.run, witness="NCCL's RAS", words=words)
            self._emit(store.Event(generation=command.generation, witness_words=said))

    def _persist(self, step: int) -> None:
        for rank in self._node.ranks:
            self._saver.persist(rank, step, self._node.start.world_size)

    def _end(self, command: store.NodeCommand) -> None:
        """Kill ranks that hang, or have every rank leave at the end of a step. The daemon sees whether they end."""
        if command.HasField("end_ranks"):
            for reason in end_ranks(self._node.ranks, command.end_ranks):
                self._refuse(command, reason)
            return
        self._command_ranks(stop_at=session.StopAt(step=command.leave.step))

    def _command_ranks(self, **kind: Any) -> None:
        """Send a command to all ranks with a session. Nothing waits for their answers."""
        for rank in self._live_ranks():
            rank.command(session.RankCommand(**kind))

    async def _take_checkpoint(self, step: int) -> None:
        """Ask every rank for a pinned snapshot at the end of ``step``. Unless all take it, the checkpoint fails."""
        reason = await self._ask_for_snapshots(session.SnapshotAt(step=step))
        if reason:
            failed = store.CheckpointFailed(step=step, reason=f"not every rank took its snapshot: {reason}")
            self._emit(store.Event(generation=self._node.generation, checkpoint_failed=failed))

    async def _replicate(self, command: store.Replicate) -> None:
        """Make replica snapshots of all ranks. Unless all take part, there is none of that step."""
        node, replicator = self._node, self._replicator
        if replicator is None or not replicator.begin(command, list(node.ranks), node.start.world_size):
            return
        generation = node.generation
        reason = await self._ask_for_snapshots(session.SnapshotAt(step=command.step, replica=True))
        if node.generation != generation:
            return  # it forgets this step, and may name the same one
        if reason:
            replicator.fail(command.step, reason)
            return
        steps = lambda: {rank.rank: rank.progress.step for rank in node.ranks.values()}  # noqa: E731
        await replicator.await_ranks(command.step, steps)

    async def _ask_for_snapshots(self, wanted: session.SnapshotAt) -> str:
        """Ask every rank for a pinned snapshot. Return why not all of them take it, or "" if they do."""
        ranks = self._live_ranks()
        asked = [rank.command(session.RankCommand(snapshot_at=wanted)) for rank in ranks]
        waiting = [ack for ack in asked if not ack.cancelled()]
        if waiting:
            await asyncio.wait(waiting, timeout=ACK_PATIENCE_S)
        return failure_of(ranks, asked)


def failure_of(ranks: Sequence[Rank], acks: "Sequence[asyncio.Future[session.CommandAck]]") -> str:
    """Return why a checkpoint that was asked of ``ranks`` fails, given their acknowledgements; "" if it does not."""
    if not ranks:
        return "no rank is alive"
    for rank, ack in zip(ranks, acks, strict=True):
        if ack.cancelled():
            return f"rank {rank.rank} has no session"
    for ack in acks:
        if ack.done() and not ack.result().accepted:
            return ack.result().detail
    late = sum(not ack.done() for ack in acks)
    return f"{late} ranks have not answered within {ACK_PATIENCE_S:.0f} s" if late else ""

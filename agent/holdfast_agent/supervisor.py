"""Starts and ends the ranks of a generation, sees how they end, adopts those of an agent that died."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from holdfast_agent.checkpoints.loader import StartingPoint
from holdfast_agent.node import Node
from holdfast_agent.processes import record
from holdfast_agent.processes.memory_kills import MemoryKills
from holdfast_agent.processes.parent_client import WarmParentClient
from holdfast_agent.processes.rank import Rank
from holdfast_agent.reports.message_checks import LARGEST, PHASES
from holdfast_checkpoint import processes
from holdfast_checkpoint.errors import CheckpointError, CheckpointUnreadable
from holdfast_checkpoint.processes import AgentError
from holdfast_proto import black_box
from holdfast_proto.rank_context import RankContext
from holdfast_proto.snapshot import SnapshotError
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1 import warm_parent_pb2 as parent_pb
from holdfast_proto.v1.agent_record_pb2 import AgentRecord, RankRecord

log = logging.getLogger(__name__)

REAP_PATIENCE_S = 0.3
"""How long the warm parent's word on an exit is waited for, once the process is seen to be gone."""

RENDEZVOUS_PATIENCE_S = 30.0

LOG_TAIL_BYTES = 4096

LOOK_S = 0.2
"""Between two looks at what nobody reports: a rank without a descriptor, a kill that may have to be repeated."""

SAVE_PAUSE_S = 5.0

GENERATIONS_KEPT = 3
"""Black boxes of older generations are removed; what mattered of them is in the incidents."""


class Supervisor:
    """The processes of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._options = node.options
        parent_log = node.options.directory / "logs" / "warm-parent.log"
        self.parent = WarmParentClient(
            node.options.parent_socket, parent_log, self._on_reaped, self._end_unknown, node.errors
        )
        self._memory_kills = MemoryKills.of_this_machine()
        self._exit_order = 0
        self._rendezvous_pid = self._rendezvous_ticks = 0
        self._last_command = "0"
        self._is_saved = True
        self._save_again_at = 0.0
        self._settling: set[asyncio.Task[None]] = set()

    async def start(self, generation: int, order: store.StartGeneration) -> None:
        """Start this node's ranks of a generation.

        If that cannot be done, the node's state says so and no rank of it is left.
        """
        node = self._node
        await self.stop()
        try:
            point = await self._starting_point(generation, order)
            self._prepare(generation, order)
            address = await self._rendezvous(generation, order)
            for local_rank in range(order.ranks):
                await self._fork(local_rank, address, point)
        except (AgentError, CheckpointError, SnapshotError, OSError) as error:
            are_away = isinstance(error, CheckpointError) and not isinstance(error, CheckpointUnreadable)
            await self._give_up(generation, str(error), awaits_files=are_away)
            if isinstance(error, CheckpointUnreadable):
                unreadable = store.CheckpointUnreadable(step=order.step, reason=str(error))
                node.link.emit(store.Event(generation=generation, checkpoint_unreadable=unreadable))
        except Exception as error:  # noqa: BLE001  the daemon must hear that it has failed, whatever it was
            node.errors.note("commands", error)
            await self._give_up(generation, f"unexpected error of the agent, see its log: {error!r}")
        self.save()
        node.changed.set()

    async def _give_up(self, generation: int, reason: str, *, awaits_files: bool = False) -> None:
        log.error("generation %d cannot start: %s", generation, reason)
        await self.stop()
        self._node.failed_generation, self._node.failure = generation, reason
        self._node.awaits_files = awaits_files

    async def _starting_point(self, generation: int, order: store.StartGeneration) -> StartingPoint:
        memory = self._node.memory
        if order.HasField("history"):
            await self._node.writer.begin_history(order.history)
        ranks = range(order.first_rank, order.first_rank + order.ranks)
        if order.source == store.SOURCE_SEED:
            memory.keep_only(-1)
            return StartingPoint()
        memory.keep_only(order.step)
        if order.source == store.SOURCE_CHECKPOINT:
            return await self._node.writer.starting_point(order.step, ranks, order.world_size, generation)
        slots = {rank: memory.slot_holding(rank, order.step) for rank in ranks}
        missing = [rank for rank, slot in slots.items() if slot is None]
        if missing:
            raise AgentError(f"ranks {missing} have no snapshot of step {order.step} in memory")
        # Slots that were unpacked from a checkpoint may be of another layout than the ranks that were to load them.
        checkpoint = self._node.writer.committed_directory(order.step)
        return StartingPoint({rank: slot for rank, slot in slots.items() if slot is not None}, checkpoint)

    def _prepare(self, generation: int, order: store.StartGeneration) -> None:
        self._node.begin_generation(generation, order)
        for path in (self._options.black_box(generation, 0), self._options.rank_log(generation, 0)):
            path.parent.mkdir(parents=True, exist_ok=True)
        old = self._options.black_box(generation - GENERATIONS_KEPT, 0).parent
        shutil.rmtree(old, ignore_errors=True)
        self._node.generation = generation

    async def _rendezvous(self, generation: int, order: store.StartGeneration) -> str:
        """Return ``host:port`` of the generation's store; host it if that is this node's part."""
        link = self._node.link
        if order.rendezvous_node == self._options.node:
            ready = await self.parent.host_store(generation, self._options.address)
            self._rendezvous_pid, self._rendezvous_ticks = ready.pid, await self.parent.identify(ready.pid)
            address = f"{self._options.address}:{ready.port}"
            if order.ranks < order.world_size and not await link.publish_rendezvous(generation, address):
                raise AgentError("the other nodes cannot be told where to meet: the store (--redis) is away")
            return address
        found = await link.find_rendezvous(generation, RENDEZVOUS_PATIENCE_S)
        if found is None:
            raise AgentError(f"node {order.rendezvous_node} has not said where generation {generation} meets")
        return found

    async def _fork(self, local_rank: int, address: str, point: StartingPoint) -> None:
        node, order = self._node, self._node.start_order
        rank = order.first_rank + local_rank
        host, _, port = address.rpartition(":")
        context = RankContext(
            run=node.spec.run,
            generation=node.generation,
            agent=f"unix:{self._options.session_socket}",
            black_box=str(self._options.black_box(node.generation, rank)),
            snapshot_every=node.spec.snapshot_every,
            checkpoint_every=node.spec.checkpoint_every,
            restore_slot=str(point.slots.get(rank, "")),
            restore_checkpoint=str(point.checkpoint or ""),
            faults_allowed=node.spec.injection_allowed,
        )
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(order.world_size),
            "LOCAL_WORLD_SIZE": str(order.ranks),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            # torch.distributed then meets in the store that the warm parent serves, whichever rank dies.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(node.generation),
            "TORCHELASTIC_RUN_ID": node.spec.run,
            **context.to_environment(),
        }
        log = self._options.rank_log(node.generation, rank)
        # An earlier start of this run may have left a log of the same generation: its words are not this rank's.
        log_start = log.stat().st_size if log.exists() else 0
        pid = await self.parent.fork(
            parent_pb.Fork(
                generation=node.generation,
                rank=rank,
                command=node.spec.command,
                environment=environment,
                log_path=str(log),
            )
        )
        started = Rank(rank, node.generation, local_rank, pid, await self.parent.identify(pid), store_port=int(port))
        started.log_start = log_start
        self.watch(started)

    def watch(self, rank: Rank) -> None:
        """Enter a rank into the node and notice its end, whoever its parent is by then."""
        self._node.ranks[rank.rank] = rank
        loop = asyncio.get_running_loop()

        def settle() -> None:
            if self._node.observes:
                self._ended_by_itself(rank)
            else:
                self._begin(self._settle(rank))

        def gone() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            settle()

        if not processes.is_alive(rank.pid, rank.start_ticks):
            settle()
            return
        try:
            descriptor = os.pidfd_open(rank.pid)
        except ProcessLookupError:
            settle()
        except OSError as error:  # no descriptor is free, or a sandbox forbids it
            log.warning("rank %d is watched by looking again and again: %s", rank.rank, error)
            self._begin(self._watch_by_looking(rank, settle))
        else:
            loop.add_reader(descriptor, gone)

    def _begin(self, job: Coroutine[None, None, None]) -> None:
        async def contained() -> None:
            with self._node.errors.contained("rank_exits"):
                await job

        task = asyncio.get_running_loop().create_task(contained())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _watch_by_looking(self, rank: Rank, settle: Callable[[], None]) -> None:
        while processes.is_alive(rank.pid, rank.start_ticks):
            await asyncio.sleep(LOOK_S)
        settle()

    async def _settle(self, rank: Rank) -> None:
        """Note the end of a rank that nobody has reported reaped: its parent is gone, or slow."""
        deadline = time.monotonic() + REAP_PATIENCE_S
        while rank.is_alive:
            status = processes.reap(rank.pid)
            if status is not None:
                self._ended(rank, _exit_of(status))
            elif time.monotonic() > deadline:
                self._ended(rank, store.RankExit())
            else:
                await asyncio.sleep(0.01)

    def _ended_by_itself(self, rank: Rank) -> None:
        """Note the end of a process that is not ours to reap."""
        status = processes.failure_of_zombie(rank.pid, rank.start_ticks)
        self._ended(rank, store.RankExit() if status is None else _exit_of(status))

    def _on_reaped(self, exited: parent_pb.Exited) -> None:
        rank = self._node.ranks.get(exited.rank)
        if rank is not None and rank.pid == exited.pid and rank.is_alive:
            self._ended(rank, _exit_of(exited.wait_status))

    def _end_unknown(self, ready: parent_pb.Ready) -> None:
        """Kill children of the warm parent that an agent has ordered and did not live to note: they are nobody's."""
        known = {rank.pid for rank in self._node.ranks.values()} | {self._rendezvous_pid}
        for pid, generation in {child.pid: child.generation for child in ready.children}.items():
            if pid not in known:
                self._begin(self._end_unknown_child(pid, generation))

    async def _end_unknown_child(self, pid: int, generation: int) -> None:
        ticks = await self.parent.identify(pid)
        if ticks:
            log.warning("generation %d: process %d is not in the record: killed", generation, pid)
            processes.kill_session(pid, ticks)

    def _ended(self, rank: Rank, ended: store.RankExit) -> None:
        self._exit_order += 1
        ended.order = self._exit_order
        ended.exited_unix_s = time.time()
        with self._node.errors.contained("rank_exits"):
            self._memory_kills.explain(rank.pid, ended)
        self._finish(rank, ended)
        if not self._node.observes:
            processes.kill_group(rank.pid, rank.start_ticks)  # what it had started must not outlive it
        elif ended.finished and not (ended.HasField("code") or ended.HasField("signal")):
            ended.code = 0
        # It failed before the hooks could keep its last words, or in C++, where they cannot.
        if (ended.code or ended.signal == signal.SIGABRT) and not ended.last_words:
            ended.last_words = _tail(self._options.rank_log(rank.generation, rank.rank), rank.log_start)
        with self._node.errors.contained("rank_exits"):
            self._node.writer.schedule_pinned(rank.rank, self._node.start_order.world_size)
        if rank.generation == self._node.generation:
            self._node.link.emit(
                store.Event(generation=rank.generation, rank_exited=store.RankExited(rank=rank.rank, exit=ended))
            )
            self._node.changed.set()

    def _finish(self, rank: Rank, ended: store.RankExit) -> None:
        """Note the end with what the black box tells, or without, if a rank has written there what makes no sense."""
        box = self._black_box(rank)
        try:
            if box is not None and not (box.phase in PHASES and -1 <= box.step <= LARGEST):
                raise ValueError("step or phase are out of range")
            rank.finish(ended, box)
        except (TypeError, ValueError) as error:
            self._node.errors.refuse("files", f"a black box: {error}")
            rank.finish(ended, None)

    def note_cgroups(self) -> None:
        """See in which cgroups the ranks are: when one has been killed to free memory, it is in none."""
        for rank in self._node.ranks.values():
            if rank.is_alive:
                with self._node.errors.contained("tick"):
                    self._memory_kills.note(rank.pid)

    def _black_box(self, rank: Rank) -> black_box.BlackBoxContents | None:
        try:
            box = black_box.read(self._options.black_box(rank.generation, rank.rank))
        except FileNotFoundError:
            return None  # it ended before it had one
        except (OSError, ValueError, TypeError) as error:
            self._node.errors.refuse("files", f"a black box: {error}")
            return None
        # A process that somebody else has launched in its place may have put its own there.
        return box if box.pid == rank.pid or not self._node.observes else None

    async def stop(self) -> None:
        """Kill every rank of the newest generation, and its rendezvous store, and see them gone.

        Ranks that somebody else has launched are left alone.
        """
        if self._node.observes:
            return
        again_at = 0.0
        while True:
            if time.monotonic() >= again_at:
                again_at = time.monotonic() + LOOK_S
                self._kill_all()
            if self._node.stopped:
                break
            await asyncio.sleep(0.005)
        self._rendezvous_pid = self._rendezvous_ticks = 0
        if self._node.learned_modules:
            with contextlib.suppress(OSError):
                await self.parent.preload(sorted(self._node.learned_modules))
            self._node.learned_modules.clear()

    def _kill_all(self) -> None:
        for rank in self._node.ranks.values():
            if processes.is_alive(rank.pid, rank.start_ticks):
                processes.kill_session(rank.pid, rank.start_ticks)
        processes.kill_session(self._rendezvous_pid, self._rendezvous_ticks)

    @property
    def last_command(self) -> str:
        """Stream id of the newest command that was carried out."""
        return self._last_command

    def done(self, stream_id: str) -> None:
        """Remember that a command was carried out."""
        self._last_command = stream_id
        self.save()

    def save(self) -> None:
        """Write what the next agent of this node must know, should this one die."""
        node = self._node
        ranks = [
            RankRecord(rank=rank.rank, pid=rank.pid, start_ticks=rank.start_ticks, exit=rank.exit)
            for rank in node.ranks.values()
        ]
        saved = AgentRecord(
            run=node.spec.run,
            node=self._options.node,
            instance=node.spec.instance,
            generation=node.generation,
            fence=node.fence,
            last_command=self._last_command,
            ranks=ranks,
            warm_parent_pid=self.parent.pid,
            warm_parent_start_ticks=self.parent.start_ticks,
            rendezvous_pid=self._rendezvous_pid,
            rendezvous_start_ticks=self._rendezvous_ticks,
            spec=node.spec,
            start=node.start_order,
        )
        self._is_saved = record.save(self._options.record, saved)

    def save_if_due(self) -> None:
        """Try once more what could not be written before: the disk was full, or no descriptor was free."""
        if not self._is_saved and time.monotonic() >= self._save_again_at:
            self._save_again_at = time.monotonic() + SAVE_PAUSE_S
            self.save()

    def adopt(self, saved: AgentRecord) -> None:
        """Take over the ranks of the agent that wrote ``saved``."""
        node = self._node
        node.fence = saved.fence
        self._last_command = saved.last_command
        self._rendezvous_pid, self._rendezvous_ticks = saved.rendezvous_pid, saved.rendezvous_start_ticks
        node.begin_generation(saved.generation, saved.start)
        first_step = 0 if saved.start.source == store.SOURCE_SEED else saved.start.step + 1
        for entry in saved.ranks:
            local_rank = entry.rank - saved.start.first_rank
            rank = Rank(entry.rank, saved.generation, local_rank, entry.pid, entry.start_ticks)
            rank.adopted_from_step = first_step
            if entry.HasField("exit"):
                rank.exit, rank.life = entry.exit, store.LIFE_EXITED
                node.ranks[rank.rank] = rank
            else:
                rank.recall(self._black_box(rank))
                self.watch(rank)
        for rank in node.ranks.values():
            with node.errors.contained("checkpoints"):
                node.writer.schedule_pinned(rank.rank, saved.start.world_size)
        alive = sum(rank.is_alive for rank in node.ranks.values())
        log.info("adopted generation %d: %d ranks, %d alive", saved.generation, len(node.ranks), alive)

    def sweep(self, saved: AgentRecord) -> None:
        """Kill what an agent of an earlier instance of this run left behind, if it had started it."""
        for entry in saved.ranks:
            if saved.spec.command and processes.is_alive(entry.pid, entry.start_ticks):
                processes.kill_session(entry.pid, entry.start_ticks)


def _tail(path: Path, start: int) -> str:
    """Return the end of a log, at most from ``start`` on."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _exit_of(wait_status: int) -> store.RankExit:
    if os.WIFSIGNALED(wait_status):
        return store.RankExit(signal=os.WTERMSIG(wait_status))
    return store.RankExit(code=os.waitstatus_to_exitcode(wait_status))

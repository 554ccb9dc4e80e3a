"""Starts and ends the ranks of a generation, and adopts those of an agent that died."""

import asyncio
import contextlib
import logging
import shutil
import time

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.checkpoints.restorer import StartingPoint
from holdfast_agent.devices.memory_release import await_release
from holdfast_agent.log_limits import begin_logs
from holdfast_agent.node import Node
from holdfast_agent.processes.containment import BackgroundJobs
from holdfast_agent.processes.parent_client import MARKER, WarmParentClient
from holdfast_agent.processes.rank import Rank
from holdfast_agent.rank_start import fork_request
from holdfast_agent.rank_watch import RankWatch
from holdfast_agent.record_keeper import RecordKeeper
from holdfast_agent.reports.store_link import StoreLink
from holdfast_base import processes, run_processes
from holdfast_base.processes import AgentError
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnreadable
from holdfast_proto.run_files import process_log
from holdfast_proto.snapshot import SnapshotError
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1 import warm_parent_pb2 as parent_pb
from holdfast_proto.v1.agent_record_pb2 import AgentRecord

log = logging.getLogger(__name__)

RENDEZVOUS_PATIENCE_S = 30.0

PREPARING_EVERY_S = 30.0
"""Time between two words to ranks that wait for their state, while it is prepared."""

KILL_AGAIN_S = 0.2
"""Pause before processes that are still alive are killed again."""

GENERATIONS_KEPT = 3
"""Generations whose black boxes are kept; incidents hold what mattered in older ones."""


class RankSupervisor:
    """Starts, ends and adopts the processes of one node."""

    def __init__(self, node: Node, link: StoreLink, checkpoints: NodeCheckpoints) -> None:
        self._node = node
        self._options = node.options
        self._link = link
        self._checkpoints = checkpoints
        self._jobs = BackgroundJobs(node.errors, "rank_exits")
        self._turn = asyncio.Lock()
        """Held while ranks are started or stopped."""
        self._in_hand = 0
        """Generation that is started now, or of which the state is prepared; 0: none."""
        self.exits = RankWatch(node, checkpoints.saver, link.emit)
        parent_log = process_log(node.options.directory, "warm-parent")
        self.parent = WarmParentClient(
            node.options.parent_socket,
            parent_log,
            self.exits.on_reaped,
            self._end_unknown,
            node.errors,
            run_name=node.options.run,
            mark=mark_of(node.spec, node.options.node),
        )
        self.record = RecordKeeper(node, self.parent)

    async def start(self, generation: int, start: store.StartGeneration) -> None:
        """Start this node's ranks of a generation, or prepare the state of those that another launcher has started.

        If that fails, the node's state reports it, and no rank that we have started is left.
        """
        if generation in (self._in_hand, self._node.failed_generation):
            return  # the leader repeats the command while this takes long, and until it hears of a failure
        async with self._turn:
            self._in_hand = generation
            await self._guarded(generation, start)
            self._in_hand = 0

    async def _guarded(self, generation: int, start: store.StartGeneration) -> None:
        node = self._node
        try:
            await (self._hand_out(generation, start) if node.observes else self._start(generation, start))
        except (AgentError, CheckpointError, SnapshotError, OSError) as error:
            awaits_files = isinstance(error, CheckpointError) and not isinstance(error, CheckpointUnreadable)
            await self._give_up(generation, str(error), awaits_files=awaits_files)
            if isinstance(error, CheckpointUnreadable):
                unreadable = store.CheckpointUnreadable(step=start.step, reason=str(error))
                self._link.emit(store.Event(generation=generation, checkpoint_unreadable=unreadable))
        except Exception as error:  # noqa: BLE001  whatever the reason, the daemon must hear of the failure
            node.errors.note("commands", error)
            await self._give_up(generation, f"unexpected error of the agent, see its log: {error!r}")
        self.record.save()
        node.changed.set()

    async def _start(self, generation: int, start: store.StartGeneration) -> None:
        node = self._node
        await self._stop()
        # Both take time, and neither needs the other.
        ranks = range(start.first_rank, start.first_rank + start.ranks)
        point, _ = await asyncio.gather(
            self._checkpoints.starting_point(start, ranks, generation),
            await_release(node.devices, list(node.ranks.values())),
        )
        self._prepare(generation, start)
        rendezvous = await self._rendezvous(generation, start)
        for local_rank in range(start.ranks):
            await self._fork(local_rank, rendezvous, point)

    async def _hand_out(self, generation: int, start: store.StartGeneration) -> None:
        """Prepare the state for ranks that wait for it. ``generation``: that of the run; launchers count themselves.

        A rank that trains already must never lose its slots to another state.
        """
        node, pids = self._node, self._node.pids
        if start.pid and start.pid != pids.get(min(pids, default=-1)):
            log.info("generation %d: the launcher has replaced its ranks since", generation)
            return
        may_train = node.given is not None and not all(rank.awaits_start for rank in node.ranks.values())
        if may_train or any(rank.steps_done for rank in node.ranks.values()):
            log.warning("generation %d: its ranks have their state already", generation)
            return
        if start.world_size != node.start.world_size:  # checkpoints of it would lack ranks
            raise AgentError(f"the state is for {start.world_size} ranks, and the launcher has {node.start.world_size}")
        start.first_rank, start.ranks = node.start.first_rank, node.start.ranks
        patience = asyncio.create_task(self._ask_for_patience())
        try:
            point = await self._checkpoints.starting_point(start, sorted(node.ranks), generation)
        finally:
            patience.cancel()
        if node.pids == pids:  # else the launcher has begun another world
            node.start, node.given, node.restored_generation = start, point, generation

    async def _ask_for_patience(self) -> None:
        """Tell ranks again and again that their state is on its way: a large checkpoint takes long to fetch."""
        while True:
            self.say_preparing()
            await asyncio.sleep(PREPARING_EVERY_S)

    def say_preparing(self) -> None:
        """Tell ranks of another launcher that their state is on its way."""
        preparing = session.AgentMessage(start_from=session.StartFrom(preparing=True))
        for rank in self._node.ranks.values():
            rank.channel.send(preparing)

    async def _give_up(self, generation: int, reason: str, *, awaits_files: bool = False) -> None:
        log.error("generation %d cannot start: %s", generation, reason)
        if not self._node.observes:
            await self._stop()
        self._node.failed_generation, self._node.failure = generation, reason
        self._node.awaits_files = awaits_files

    def _prepare(self, generation: int, start: store.StartGeneration) -> None:
        self._node.begin_generation(generation, start)
        # An earlier start of the run may have left boxes. Of a rank that ends before it has its own box, they would say
        # what it never did.
        shutil.rmtree(self._options.black_box(generation, 0).parent, ignore_errors=True)
        self._options.black_box(generation, 0).parent.mkdir(parents=True, exist_ok=True)
        begin_logs(self._options.rank_log(generation, 0).parent)
        old = self._options.black_box(generation - GENERATIONS_KEPT, 0).parent
        shutil.rmtree(old, ignore_errors=True)

    async def _rendezvous(self, generation: int, start: store.StartGeneration) -> str:
        """Return ``host:port`` of the generation's rendezvous store, which one of the nodes hosts."""
        if start.rendezvous_node == self._options.node:
            ready = await self.parent.host_store(generation, self._options.address)
            self.record.rendezvous = ready.pid, await self.parent.identify(ready.pid)
            address = f"{self._options.address}:{ready.port}"
            if start.ranks < start.world_size and not await self._link.publish_rendezvous(generation, address):
                raise AgentError(
                    "cannot publish the rendezvous for the other nodes: the store (--redis) is unreachable"
                )
            return address
        found = await self._link.find_rendezvous(generation, RENDEZVOUS_PATIENCE_S)
        if found is None:
            raise AgentError(
                f"node {start.rendezvous_node} has not published the rendezvous of generation {generation}"
            )
        return found

    async def _fork(self, local_rank: int, rendezvous: str, point: StartingPoint) -> None:
        node = self._node
        request = fork_request(
            node.options,
            node.spec,
            node.start,
            generation=node.generation,
            local_rank=local_rank,
            rendezvous=rendezvous,
            point=point,
        )
        # An earlier start of this run may have left a log of the same generation. Its text must not be taken for the
        # last words of this rank.
        log_file = self._options.rank_log(node.generation, request.rank)
        log_start = log_file.stat().st_size if log_file.exists() else 0
        pid = await self.parent.fork(request)
        ticks = await self.parent.identify(pid)
        store_port = int(rendezvous.rpartition(":")[2])
        rank = Rank(request.rank, node.generation, local_rank, pid, ticks, store_port=store_port, log_start=log_start)
        self.exits.watch(rank)

    def _end_unknown(self, ready: parent_pb.Ready) -> None:
        """Kill children of the warm parent that are in no record.

        The last agent requested them and died before it could save their pids. If they lived, a rank would run twice.
        """
        known = {rank.pid for rank in self._node.ranks.values()} | {self.record.rendezvous[0]}
        for pid, generation in {child.pid: child.generation for child in ready.children}.items():
            if pid not in known:
                self._jobs.begin(self._end_unknown_child(pid, generation))

    async def _end_unknown_child(self, pid: int, generation: int) -> None:
        ticks = await self.parent.identify(pid)
        if ticks:
            log.warning("generation %d: process %d is not in the record: killed", generation, pid)
            processes.kill_session(pid, ticks)

    async def stop(self) -> None:
        """Kill every rank of the newest generation and its rendezvous store, and wait until they are gone.

        Ranks that another launcher has started are left alone.
        """
        if not self._node.observes:
            async with self._turn:
                await self._stop()

    async def _stop(self) -> None:
        kill_at = 0.0
        while True:
            if time.monotonic() >= kill_at:
                kill_at = time.monotonic() + KILL_AGAIN_S
                self._kill_all()
            if self._node.stopped:
                break
            await asyncio.sleep(0.005)
        self.record.rendezvous = (0, 0)
        if self._node.learned_modules:
            with contextlib.suppress(OSError):
                await self.parent.preload(sorted(self._node.learned_modules))
            self._node.learned_modules.clear()

    def _kill_all(self) -> None:
        for rank in self._node.ranks.values():
            if processes.is_alive(rank.pid, rank.start_ticks):
                processes.kill_session(rank.pid, rank.start_ticks)
        processes.kill_session(*self.record.rendezvous)

    def adopt(self, saved: AgentRecord) -> None:
        """Take over the ranks of the agent that wrote ``saved``."""
        node = self._node
        node.fence, node.command_number = saved.fence, saved.command_number
        self.record.last_command = saved.last_command
        self.record.rendezvous = saved.rendezvous_pid, saved.rendezvous_start_ticks
        node.begin_generation(saved.generation, saved.start)
        if saved.restored_generation:
            node.restored_generation = saved.restored_generation
        if node.observes and saved.start.source != store.SOURCE_UNSPECIFIED:
            node.given = self._checkpoints.point_in_memory(saved.start, [entry.rank for entry in saved.ranks])
        first_step = 0 if saved.start.source == store.SOURCE_SEED else saved.start.step + 1
        for entry in saved.ranks:
            local_rank = entry.rank - saved.start.first_rank
            rank = Rank(entry.rank, saved.generation, local_rank, entry.pid, entry.start_ticks)
            rank.adopted_from_step = first_step
            if entry.HasField("exit"):
                rank.exit, rank.life = entry.exit, store.LIFE_EXITED
                node.ranks[rank.rank] = rank
            else:
                rank.recall(self.exits.black_box_of(rank))
                self.exits.watch(rank)
        for rank in node.ranks.values():
            with node.errors.contained("checkpoints"):
                self._checkpoints.saver.schedule_pinned(rank.rank, saved.start.world_size)
        alive = sum(rank.is_alive for rank in node.ranks.values())
        log.info("adopted generation %d: %d ranks, %d alive", saved.generation, len(node.ranks), alive)


def mark_of(spec: store.RunSpec, node: str) -> str:
    """Return what marks the processes of one start of a run on one node, in their environment."""
    return f"{spec.instance}/{node}"


def end_marked(spec: store.RunSpec, node: str) -> None:
    """Kill the ranks and the warm parent that an earlier agent of this node has left, and that no record names.

    They cannot be adopted: nobody knows their command, nor which commands were carried out.
    """
    if spec.command and spec.instance:  # else another launcher starts the ranks
        ended = run_processes.kill_all(list(run_processes.marked_processes(MARKER, mark_of(spec, node))))
        if ended:
            log.warning("an earlier agent of this node has left no usable record: its %d processes were ended", ended)


def sweep(saved: AgentRecord) -> None:
    """Kill the ranks that an agent of an earlier instance of this run has started and left behind."""
    for entry in saved.ranks:
        if saved.spec.command and processes.is_alive(entry.pid, entry.start_ticks):
            processes.kill_session(entry.pid, entry.start_ticks)

"""Notices the end of each rank, finds out how it ended, and reports it."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from holdfast_agent.checkpoints.shard_saver import ShardSaver
from holdfast_agent.node import Node
from holdfast_agent.processes.containment import BackgroundJobs
from holdfast_agent.processes.memory_kills import MemoryKills
from holdfast_agent.processes.output_file import OutputFile
from holdfast_agent.processes.rank import Rank
from holdfast_base import processes
from holdfast_base.threads import in_daemon_thread
from holdfast_proto import black_box
from holdfast_proto.black_box import BlackBoxError
from holdfast_proto.limits import LARGEST_COUNT
from holdfast_proto.run_files import worker_server_socket
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1 import warm_parent_pb2 as parent_pb
from holdfast_proto.vocabulary import PHASES

log = logging.getLogger(__name__)

REAP_PATIENCE_S = 0.3
"""Seconds to wait for the warm parent's report of an exit, once the process is seen to be gone."""

LOG_TAIL_BYTES = 4096

LOOK_S = 0.2
"""Pause between two looks at a rank's process, if the agent could not open a pidfd for it."""

OUTPUT_PATIENCE_S = 1.0
"""Time to read what was written about an abort. The verdict waits for it."""


class RankWatch:
    """Watches the processes of this node's ranks.

    A rank's end has two witnesses. The kernel reports through a pidfd that the process is gone, even if its parent is
    dead. The warm parent, which reaps it, reports the exit status. The agent waits only briefly for that status.
    """

    def __init__(self, node: Node, saver: ShardSaver, emit: Callable[[store.Event], None]) -> None:
        self._node = node
        self._saver = saver
        self._emit = emit
        self._memory_kills = MemoryKills.of_this_machine()
        self._exit_order = 0
        self._unclaimed: dict[tuple[int, int, int], int] = {}
        """Generation, rank and pid -> wait status of ranks that ended before this process watched them."""
        self._jobs = BackgroundJobs(node.errors, "rank_exits")

    def watch(self, rank: Rank) -> None:
        """Enter a rank into the node, and notice its end."""
        self._node.ranks[rank.rank] = rank
        status = self._unclaimed.pop((rank.generation, rank.rank, rank.pid), None)
        if status is not None:
            self._ended(rank, exit_of(status))
            return
        loop = asyncio.get_running_loop()
        if self._node.observes:
            self._jobs.begin(self._note_output(rank))

        def settle() -> None:
            if self._node.observes:
                self._ended_by_itself(rank)
            else:
                self._jobs.begin(self._settle(rank))

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
        except OSError as error:  # no descriptor is free, or a sandbox forbids pidfds
            log.warning("rank %d is watched by polling its process: %s", rank.rank, error)
            self._jobs.begin(self._poll(rank, settle))
        else:
            loop.add_reader(descriptor, gone)

    async def _poll(self, rank: Rank, settle: Callable[[], None]) -> None:
        while processes.is_alive(rank.pid, rank.start_ticks):
            await asyncio.sleep(LOOK_S)
        settle()

    async def _settle(self, rank: Rank) -> None:
        """Note the end of a rank that is gone, with its exit status if the warm parent reports it soon.

        If the warm parent is gone too, the rank may have become a child of this process, which then reaps it.
        """
        deadline = time.monotonic() + REAP_PATIENCE_S
        while rank.is_alive:
            status = processes.reap(rank.pid)
            if status is not None:
                self._ended(rank, exit_of(status))
            elif time.monotonic() > deadline:
                self._ended(rank, store.RankExit())
            else:
                await asyncio.sleep(0.01)

    def _ended_by_itself(self, rank: Rank) -> None:
        """Note the end of a process that is not ours to reap."""
        status = processes.failure_of_zombie(rank.pid, rank.start_ticks)
        ended = store.RankExit() if status is None else exit_of(status)
        if ended.signal == signal.SIGABRT and rank.output is not None:
            self._jobs.begin(self._aborted(rank, ended, rank.output))
        else:
            self._ended(rank, ended)

    async def _note_output(self, rank: Rank) -> None:
        # In threads of their own, because the file may be on a disk that hangs.
        rank.output = await in_daemon_thread(lambda: OutputFile.of(rank.pid))

    async def _aborted(self, rank: Rank, ended: store.RankExit, output: OutputFile) -> None:
        words = ""
        with contextlib.suppress(TimeoutError):
            words = await asyncio.wait_for(in_daemon_thread(output.abort_message), OUTPUT_PATIENCE_S)
        self._ended(rank, ended, words)

    def on_reaped(self, exited: parent_pb.Exited) -> None:
        """Take in the warm parent's report that it has reaped a rank.

        A rank may end so quickly that the report arrives before :meth:`watch` is called for it. A report may also come
        again, and the kernel may have given the pid to a rank of a later generation: that one is left alone.
        """
        rank = self._node.ranks.get(exited.rank)
        if rank is not None and (rank.generation, rank.pid) == (exited.generation, exited.pid):
            if rank.is_alive:
                self._ended(rank, exit_of(exited.wait_status))
        elif exited.generation == self._node.generation:
            self._unclaimed = {
                known: status for known, status in self._unclaimed.items() if known[0] == exited.generation
            }
            self._unclaimed[exited.generation, exited.rank, exited.pid] = exited.wait_status

    def _ended(self, rank: Rank, ended: store.RankExit, words: str = "") -> None:
        """Note an end. ``words``: what a rank of another launcher wrote as it was aborted."""
        node = self._node
        self._exit_order += 1
        ended.order = self._exit_order
        ended.exited_unix_s = time.time()
        with node.errors.contained("rank_exits"):
            self._memory_kills.explain(rank.pid, ended)
            self._explain_by_gpu(rank, ended)
        self._finish(rank, ended)
        with contextlib.suppress(OSError):  # a rank that was killed leaves the socket of its worker server behind
            worker_server_socket(node.options.session_socket, rank.pid).unlink()
        if not node.observes:
            processes.kill_group(rank.pid, rank.start_ticks)  # processes that it started must not outlive it
        elif ended.finished and not (ended.HasField("code") or ended.HasField("signal")):
            ended.code = 0
        # The rank failed before the hooks could keep its last words, or in C++, where they cannot.
        if (ended.code or ended.signal == signal.SIGABRT) and not ended.last_words:
            log_file = node.options.rank_log(rank.generation, rank.rank)
            ended.last_words = words if node.observes else _tail(log_file, rank.log_start)
        with node.errors.contained("rank_exits"):
            self._saver.schedule_pinned(rank.rank, node.start.world_size)
        if rank.generation == node.generation:
            exited = store.RankExited(rank=rank.rank, exit=ended)
            self._emit(store.Event(generation=rank.generation, rank_exited=exited))
            node.changed.set()

    def explain_later(self) -> None:
        """Explain ends by an error of a GPU that was reported after them."""
        for rank in self._node.ranks.values():
            if rank.exit is not None:
                self._explain_by_gpu(rank, rank.exit)
        self._node.changed.set()

    def _explain_by_gpu(self, rank: Rank, ended: store.RankExit) -> None:
        is_clean = ended.HasField("code") and ended.code == 0
        if is_clean or ended.out_of_memory or ended.HasField("gpu_fault"):
            return
        fault = self._node.devices.fault_of_end(rank, ended.exited_unix_s)
        if fault is not None:
            ended.gpu_fault.CopyFrom(fault)

    def _finish(self, rank: Rank, ended: store.RankExit) -> None:
        """Note the end with the contents of the black box, or without, if the rank has written garbage there."""
        box = self.black_box_of(rank)
        try:
            if box is not None and not (box.phase in PHASES and -1 <= box.step <= LARGEST_COUNT):
                raise ValueError("step or phase are out of range")
            rank.finish(ended, box)
        except (TypeError, ValueError) as error:
            self._node.errors.refuse("files", f"a black box: {error}")
            rank.finish(ended, None)

    def black_box_of(self, rank: Rank) -> black_box.BlackBoxContents | None:
        """Return the contents of a rank's black box; None if it has none, or garbage in it."""
        try:
            box = black_box.read(self._node.options.black_box(rank.generation, rank.rank))
        except FileNotFoundError:
            return None  # the rank ended before it had one
        except (OSError, BlackBoxError) as error:
            self._node.errors.refuse("files", f"a black box: {error}")
            return None
        # A foreign launcher may have restarted the rank: the box then belongs to the newer process.
        return box if box.pid == rank.pid or not self._node.observes else None

    def note_cgroups(self) -> None:
        """Note the cgroup of each live rank: a rank that was killed to free memory is in none."""
        for rank in self._node.ranks.values():
            if rank.is_alive:
                with self._node.errors.contained("tick"):
                    self._memory_kills.note(rank.pid)


def exit_of(wait_status: int) -> store.RankExit:
    """Return how a process ended, from its wait status."""
    if os.WIFSIGNALED(wait_status):
        return store.RankExit(signal=os.WTERMSIG(wait_status))
    return store.RankExit(code=os.waitstatus_to_exitcode(wait_status))


def _tail(path: Path, start: int) -> str:
    """Return the end of a log, but nothing before ``start``."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            # A smaller log was emptied since because it was too large: all of it is the rank's.
            file.seek(max(start if start <= size else 0, size - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

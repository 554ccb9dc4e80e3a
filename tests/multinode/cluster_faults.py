"""Faults of all that a run on several nodes consists of: ranks, nodes, networks, daemon, store, memory and disk.

Faults of numbers are not among them. A wrong gradient is meant to change the weights, and these runs must end with the
bits of an undisturbed one.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_FORWARD_BACKWARD
from holdfast_proto.v1.control_pb2 import RankView
from holdfast_proto.v1.fault_pb2 import Fault as InjectedFault
from tests.chaos.test_checkpoint_outage import Disk
from tests.multinode.cluster import Cluster, flip_bit
from tests.multinode.network import Link
from tests.support.local_runs import wait_for

HEADER_BYTES = 64

Harm = Callable[[Cluster, RankView], AbstractContextManager[None]]
"""Does harm to a rank, or to its node. The harm that ends by itself ends with the context."""


@dataclass(frozen=True)
class ClusterFault:
    """A fault, and what must follow."""

    name: str
    harm: Harm
    lasts_s: float = 0.0
    shows: "Callable[[Cluster, RankView, int], bool]" = lambda *_: True
    """The harm lasts until this is so. Takes the rank, and the generation that it strikes."""
    restarts: bool = True
    """Whether the run must start again. If not, it must not: all ranks continue to train."""
    sources: "tuple[store.Source, ...]" = ()
    """Sources of the state that the run must continue from; none: any."""


@contextmanager
def _signalled(number: signal.Signals, run: Cluster, victim: RankView) -> Iterator[None]:
    os.kill(victim.pid, number)
    yield


@contextmanager
def _paused(run: Cluster, victim: RankView) -> Iterator[None]:
    os.kill(victim.pid, signal.SIGSTOP)
    yield
    os.kill(victim.pid, signal.SIGCONT)


@contextmanager
def _injected(kind: str, run: Cluster, victim: RankView, **details: float) -> Iterator[None]:
    phase = PHASE_FORWARD_BACKWARD  # in the phase of a checkpoint, a standstill may last for three minutes
    fault = InjectedFault(kind=kind, rank=victim.rank, step=-1, phase=phase, **details)  # type: ignore[arg-type]

    def accepted() -> bool:
        run.control.inject_fault(fault)
        return True

    wait_for(accepted, f"rank {victim.rank} to accept {kind}")
    yield


@contextmanager
def _cut_off(links: Sequence[Link], run: Cluster, victim: RankView) -> Iterator[None]:
    node = _number(victim)
    run.net.cut(node, *links)
    yield
    run.net.repair(node, *links)


@contextmanager
def _without_power(run: Cluster, victim: RankView) -> Iterator[None]:
    """All processes of the node end, and its memory is empty. Then it boots."""
    node = _number(victim)
    run.net.cut(node, *Link)  # no connection is closed
    while pids := run.net.pids(node):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.processes[f"agent-{node}"].poll()
        time.sleep(0.05)
    for folder in (*run.memory.glob(f"holdfast-*@{victim.node}"), run.memory / str(node)):
        shutil.rmtree(folder, ignore_errors=True)
    yield
    run.net.repair(node, *Link)
    run.start_agent(node)


@contextmanager
def _killed(part: str, run: Cluster, victim: RankView) -> Iterator[None]:
    """SIGKILL an agent, the daemon or Redis. Then start it again, as systemd would."""
    name = f"agent-{_number(victim)}" if part == "agent" else part
    run.processes[name].kill()
    run.processes[name].wait()
    yield
    if part == "agent":
        run.start_agent(_number(victim))
    else:
        (run.start_daemon if part == "daemon" else run.start_redis)()


@contextmanager
def _without_snapshots(run: Cluster, victim: RankView) -> Iterator[None]:
    """Overwrite the headers of all snapshots, and kill all ranks."""
    pids = [rank.pid for rank in run.control.status().ranks]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that no rank takes a further snapshot
    for slot in run.memory.glob("holdfast-*/**/*.slot"):
        with slot.open("r+b") as file:
            file.write(bytes(HEADER_BYTES))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    yield


@contextmanager
def _with_damaged_replicas(run: Cluster, victim: RankView) -> Iterator[None]:
    """Let a node lose power, and flip a bit of each replica snapshot before its lease has run out."""
    with _without_power(run, victim):
        for shard in run.memory.glob("holdfast-*/replicas/step-*/*.shard"):
            flip_bit(shard)
        yield


@contextmanager
def _with_full_disk(run: Cluster, victim: RankView) -> Iterator[None]:
    disk = Disk(run.folder / "checkpoints")
    disk.fill()
    yield
    disk.empty()


def _number(victim: RankView) -> int:
    return int(victim.node.removeprefix("node-"))


def _is_unseen(run: Cluster, victim: RankView, generation: int) -> bool:
    """Whether the lease of the node has run out."""
    return all(rank.node != victim.node for rank in run.control.status().ranks)


def _is_stopped(run: Cluster, victim: RankView, generation: int) -> bool:
    """Whether the run is about to start again, or has done so."""
    status = run.control.status()
    return status.phase != store.RUN_PHASE_RUNNING or status.generation > generation


def _trains_elsewhere(run: Cluster, victim: RankView, generation: int) -> bool:
    """Whether the run has started again, without the node."""
    status = run.control.status()
    has_started = status.phase == store.RUN_PHASE_RUNNING and status.generation > generation
    return has_started and _is_unseen(run, victim, generation)


def _misses_checkpoints(run: Cluster, victim: RankView, generation: int) -> bool:
    """Whether at least one checkpoint is missing that was due."""
    status = run.control.status()
    return status.newest_step > status.newest_checkpoint + 2 * run.checkpoint_every


_BOTH = (Link.CONTROL, Link.DATA)
_NOT_MEMORY = (store.SOURCE_REPLICA, store.SOURCE_CHECKPOINT)

FAULTS = (
    ClusterFault("a rank is killed", partial(_signalled, signal.SIGKILL)),
    ClusterFault("a rank crashes", partial(_injected, "segfault")),
    ClusterFault("a rank raises an exception", partial(_injected, "exception")),
    ClusterFault("a rank leaves too early", partial(_injected, "exit-0")),
    ClusterFault("a rank is stopped", partial(_signalled, signal.SIGSTOP)),
    ClusterFault("a rank holds the interpreter's lock", partial(_injected, "gil-held")),
    ClusterFault("a rank skips a collective", partial(_injected, "skipped-collective")),
    ClusterFault("a rank pauses", _paused, lasts_s=0.3, restarts=False),
    ClusterFault("a rank is slow", partial(_injected, "slow", factor=3.0, duration_s=10.0), 10.0, restarts=False),
    ClusterFault("a node is cut off", partial(_cut_off, _BOTH), shows=_trains_elsewhere, sources=_NOT_MEMORY),
    ClusterFault("a node loses power", _without_power, shows=_trains_elsewhere, sources=_NOT_MEMORY),
    ClusterFault("the data link is cut", partial(_cut_off, (Link.DATA,)), shows=_is_stopped),
    ClusterFault("the control link is cut", partial(_cut_off, (Link.CONTROL,)), shows=_is_unseen, restarts=False),
    ClusterFault("an agent is killed", partial(_killed, "agent"), lasts_s=2.0, restarts=False),
    ClusterFault("the daemon is killed", partial(_killed, "daemon"), lasts_s=2.0, restarts=False),
    ClusterFault("Redis is killed and loses all data", partial(_killed, "redis"), lasts_s=2.0, restarts=False),
    ClusterFault("the disk of checkpoints is full", _with_full_disk, shows=_misses_checkpoints, restarts=False),
    ClusterFault("all ranks are killed, and their snapshots overwritten", _without_snapshots, sources=_NOT_MEMORY),
    ClusterFault(
        "a node loses power, and replica snapshots are damaged",
        _with_damaged_replicas,
        shows=_trains_elsewhere,
        sources=(store.SOURCE_CHECKPOINT,),
    ),
)
"""One of each kind."""

"""Which rank computes on which GPU, and what is wrong with a GPU."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast_agent.devices.gpu import GONE, SEVERE_THROTTLES, Gpu, GpuSample, merged
from holdfast_agent.devices.xids import Xid, XidKind
from holdfast_agent.processes.rank import Rank
from holdfast_proto.v1 import store_pb2 as store

_XIDS_KEPT = 256
_EXPLAINS_S = 60.0
"""Time before the end of a process in which an Xid of its work may be the reason. CUDA reports errors late."""


@dataclass
class _Utilization:
    """Samples of a GPU's utilization: the mean over any stretch of time follows from two readings of these."""

    total: float = 0.0
    samples: int = 0

    def add(self, ratio: float) -> None:
        self.total += ratio
        self.samples += 1


_NO_SAMPLES = _Utilization()


@dataclass(frozen=True)
class SeenXid:
    """An Xid of a known GPU, and when it was seen."""

    uuid: str
    xid: Xid
    unix_s: float = field(default_factory=time.time)


class NodeDevices:
    """The GPUs of one node. It reads nothing itself: see device_watch.py. All methods run on the agent's event loop.

    Args:
        pids_are_ours: whether the numbers of processes in the kernel's log and of the driver mean the same as ours.
    """

    def __init__(self, *, pids_are_ours: bool = True) -> None:
        self.gpus: Mapping[str, Gpu] = {}
        """UUID -> GPU."""
        self.xid_counts: Counter[tuple[str, int]] = Counter()
        """UUID and number -> Xids seen."""
        self.answers = False
        """Whether the driver answers now."""
        self.samples_total = 0
        self.peak_used_bytes: dict[str, float] = {}
        """UUID -> most memory that was in use in this generation."""
        self.ask: Callable[[], None] = lambda: None
        """Asks for a sample before the next regular one."""
        self.refresh: Callable[[], None] = lambda: None
        """Takes in what the kernel has logged up to now."""
        self.pids_are_ours = pids_are_ours
        self._xids: deque[SeenXid] = deque(maxlen=_XIDS_KEPT)
        self._utilization: dict[str, _Utilization] = {}
        """UUID -> utilization since the agent started."""
        self._gone_since: dict[str, float] = {}
        self._uuid_by_pid: dict[tuple[int, int], str] = {}
        """Pid and start of a process -> UUID of the GPU on which the driver has seen it."""

    def take_list(self, listed: GpuSample) -> None:
        """Take in which GPUs the driver lists. What samples show of a GPU is newer."""
        self.gpus = {**{gpu.uuid: gpu for gpu in listed.gpus}, **self.gpus}

    def forget_readings(self) -> None:
        """Drop what samples have shown: the driver does not answer any more."""
        self.answers = False
        self.gpus = merged(self.gpus, GpuSample(()))

    def take(self, sample: GpuSample) -> None:
        """Take in a sample of what the driver shows now."""
        self.answers = True
        self.gpus = merged(self.gpus, sample)
        self.samples_total += 1
        for gpu in sample.gpus:
            ratio = gpu.readings.get("utilization_ratio")
            if ratio is not None:
                self._utilization.setdefault(gpu.uuid, _Utilization()).add(ratio)
        for gpu in self.gpus.values():
            used = gpu.readings.get("memory_used_bytes", 0.0)
            self.peak_used_bytes[gpu.uuid] = max(used, self.peak_used_bytes.get(gpu.uuid, 0.0))
            if gpu.gone:
                self._gone_since.setdefault(gpu.uuid, time.time())
            else:
                self._gone_since.pop(gpu.uuid, None)

    def take_xid(self, xid: Xid, uuid: str = "") -> SeenXid | None:
        """Take in an Xid; return it, or None if its GPU is not known. ``uuid``: that of its GPU, if NVML reports it."""
        found = next((gpu for gpu in self.gpus.values() if uuid == gpu.uuid or (xid.bus_id == gpu.bus_id)), None)
        if found is None:
            return None
        seen = SeenXid(found.uuid, xid)
        self._xids.append(seen)
        self.xid_counts[found.uuid, xid.number] += 1
        return seen

    def gpu_of(self, rank: Rank) -> Gpu | None:
        """Return the GPU of a rank: by the UUID that the rank reports, else by its process; None: it has none."""
        if rank.device_uuid:
            gpus = self.gpus.values()
            return next((gpu for gpu in gpus if rank.device_uuid == gpu.uuid or rank.device_uuid in gpu.parts), None)
        return self.gpus.get(self._uuid_by_pid.get((rank.pid, rank.start_ticks), ""))

    def _find_by_process(self, rank: Rank) -> None:
        """Remember the GPU on which the driver shows a rank's process: a GPU that is lost shows none any more."""
        if self.pids_are_ours and not rank.device_uuid:
            for gpu in self.gpus.values():
                if rank.pid in (gpu.pids or ()):
                    self._uuid_by_pid[rank.pid, rank.start_ticks] = gpu.uuid

    def state_of(self, rank: Rank) -> store.GpuState | None:
        """Return the state of a rank's GPU; None: it has none."""
        self._find_by_process(rank)
        gpu = self.gpu_of(rank)
        if gpu is None:
            return None
        severe = [name for name in gpu.throttles if name in SEVERE_THROTTLES]
        # Of a divided GPU, the driver would show the work of all parts together.
        utilization = _NO_SAMPLES if gpu.parts else self._utilization.get(gpu.uuid, _NO_SAMPLES)
        return store.GpuState(
            gpu=gpu.index,
            uuid=gpu.uuid,
            fault=self._fatal_fault(rank, gpu),
            throttles=severe,
            utilization_sum=utilization.total,
            utilization_samples=utilization.samples,
        )

    def fault_of_end(self, rank: Rank, ended_unix_s: float) -> store.GpuFault | None:
        """Return the error of a GPU that explains why a rank has ended; None: there is none.

        An error in the work of one process counts if it names that process, or if no other rank has that GPU.
        """
        self.refresh()
        gpu = self.gpu_of(rank)
        fault = self._fatal_fault(rank, gpu) if gpu is not None else None
        if fault is not None:
            return fault
        for seen in reversed(self._xids):
            since = max(rank.began_unix_s, ended_unix_s - _EXPLAINS_S)
            if seen.xid.kind is XidKind.PROCESS and seen.unix_s >= since and self._is_of(seen, rank, gpu):
                return _fault(self.gpus[seen.uuid], seen)
        return None

    def _is_of(self, seen: SeenXid, rank: Rank, gpu: Gpu | None) -> bool:
        if seen.xid.pid and self.pids_are_ours:
            return seen.xid.pid == rank.pid
        return gpu is not None and gpu.uuid == seen.uuid

    def _fatal_fault(self, rank: Rank, gpu: Gpu) -> store.GpuFault | None:
        for seen in reversed(self._xids):
            if seen.xid.kind is XidKind.FATAL and seen.uuid == gpu.uuid and seen.unix_s >= rank.began_unix_s:
                return _fault(gpu, seen)
        if not gpu.gone:
            return None
        since = self._gone_since.get(gpu.uuid, 0.0)
        return store.GpuFault(gpu=gpu.index, uuid=gpu.uuid, meaning=GONE[gpu.gone], unix_s=since, fatal=True)


def _fault(gpu: Gpu, seen: SeenXid) -> store.GpuFault:
    return store.GpuFault(
        gpu=gpu.index,
        uuid=gpu.uuid,
        xid=seen.xid.number,
        meaning=seen.xid.phrase,
        line=seen.xid.line,
        unix_s=seen.unix_s,
        fatal=seen.xid.kind is XidKind.FATAL,
    )


def gpus_of(devices: NodeDevices, ranks: Iterable[Rank]) -> list[Gpu]:
    """Return the GPUs on which ranks compute, by number."""
    found = {gpu.uuid: gpu for rank in ranks if (gpu := devices.gpu_of(rank)) is not None}
    return sorted(found.values(), key=lambda gpu: gpu.index)

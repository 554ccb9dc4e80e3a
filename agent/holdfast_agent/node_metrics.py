"""The agent's /metrics: read from the node at each scrape, so that it never shows a rank that is gone."""

from collections.abc import Callable, Iterator
from importlib.metadata import version

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.devices.gpu import THROTTLES
from holdfast_agent.devices.node_devices import gpus_of
from holdfast_agent.metrics import families as declared
from holdfast_agent.node import Node
from holdfast_agent.processes.parent_client import WarmParentClient
from holdfast_agent.processes.rank import Rank
from holdfast_agent.replicas.replicator import ReplicaCounters
from holdfast_agent.reports.store_link import StoreLink
from holdfast_base.metric_family import MetricFamily
from holdfast_base.metrics_server import MetricsServer
from holdfast_checkpoint.store.secondary import Lag
from holdfast_proto.message_json import enum_name
from holdfast_proto.v1.common_pb2 import OwnTimeSource, Phase, RecorderSource


def _in_phase_s(rank: Rank, phase: int) -> float:
    return rank.phase_s.get(phase, 0.0) + rank.outside_s.get(phase, 0.0)


_OF_EACH_RANK: tuple[tuple[MetricFamily, Callable[[Rank], float | None]], ...] = (
    (declared.RANK_UP, lambda rank: rank.is_alive),
    (declared.RANK_STEP, lambda rank: rank.newest_progress.step),
    (declared.RANK_LAST_PROGRESS, lambda rank: rank.last_progress_unix_s),
    (declared.RANK_STEP_DURATION, lambda rank: rank.last_step_s),
    (declared.RANK_PIPELINE_BUBBLE, lambda rank: rank.pipeline_bubble),
    (declared.RANK_DATA_WAIT, lambda rank: _in_phase_s(rank, Phase.PHASE_DATA)),
    (declared.RANK_CALL_WAIT, lambda rank: rank.call_wait_s if rank.device.startswith("cpu") else None),
    (declared.RANK_MEMORY_ALLOCATED, lambda rank: rank.memory.allocated_bytes),
    (declared.RANK_MEMORY_RESERVED, lambda rank: rank.memory.reserved_bytes),
    (declared.RANK_ALLOC_RETRIES, lambda rank: rank.memory.alloc_retries),
    (declared.RANK_OOMS, lambda rank: rank.memory.ooms),
    (declared.RANK_SNAPSHOT_UNCHANGED, lambda rank: rank.snapshots_unchanged_bytes),
    (declared.REPORTER_CPU, lambda rank: rank.reporter_cpu_s),
)
"""Families with one sample for each rank, and its value; None: the rank has not reported one."""


_OF_EACH_GPU: tuple[tuple[MetricFamily, str], ...] = (
    (declared.GPU_UTILIZATION, "utilization_ratio"),
    (declared.GPU_MEMORY_USED, "memory_used_bytes"),
    (declared.GPU_MEMORY_TOTAL, "memory_total_bytes"),
    (declared.GPU_TEMPERATURE, "temperature_celsius"),
    (declared.GPU_POWER, "power_watts"),
    (declared.GPU_SM_CLOCK, "sm_clock_hertz"),
    (declared.GPU_MEMORY_CLOCK, "memory_clock_hertz"),
    (declared.GPU_ECC_ERRORS, "ecc_uncorrected_errors"),
    (declared.GPU_ROW_REMAP_PENDING, "row_remap_pending"),
    (declared.GPU_ROW_REMAP_FAILED, "row_remap_failed"),
    (declared.GPU_NVLINK_ERRORS, "nvlink_errors"),
)
"""Families with one sample for each GPU, and the reading that they show."""


class AgentCollector(Collector):
    """Everything one agent exports."""

    def __init__(
        self, node: Node, link: StoreLink, checkpoints: NodeCheckpoints, warm_parent: WarmParentClient
    ) -> None:
        self._node = node
        self._link = link
        self._checkpoints = checkpoints
        self._warm_parent = warm_parent
        self.server: MetricsServer | None = None
        """Server of these metrics, once it runs."""

    def collect(self) -> Iterator[Metric]:
        """Yield all families. Runs on the scraper's thread: it reads, and never writes, the node."""
        ranks = list(self._node.ranks.values())
        yield from self._rank_families(ranks)
        yield from self._gpu_families(ranks)
        yield from self._checkpoint_families(ranks)
        yield from self._replica_families()
        yield from self._secondary_families()
        yield from self._self_families(ranks)

    def _rank_families(self, ranks: list[Rank]) -> Iterator[Metric]:
        run, node = self._node.spec.run, self._node.options.node
        labels = {rank.rank: (run, str(rank.rank)) for rank in ranks}
        places = [(run, str(rank.rank), str(rank.local_rank), node, *self._gpu_of(rank)) for rank in ranks]
        yield declared.RANK_INFO.metric((place, 1) for place in places)
        for family, value in _OF_EACH_RANK:
            numbers = [(labels[rank.rank], value(rank)) for rank in ranks]
            yield family.metric((label, number) for label, number in numbers if number is not None)
        yield declared.RANK_PHASE_TIME.metric(
            ((*labels[rank.rank], name), _in_phase_s(rank, phase))
            for rank in ranks
            for name, phase in declared.PHASES.items()
        )
        yield declared.RANK_COLLECTIVE_SEQ.metric(
            ((*labels[rank.rank], group.description or group.group, point), seq)
            for rank in ranks
            for group in rank.progress.groups
            for point, seq in (("enqueued", group.enqueued), ("completed", group.completed))
        )

        yield declared.RANK_RECORDER_INFO.metric(
            ((*labels[rank.rank], enum_name(RecorderSource, recorder.source), recorder.backend), 1)
            for rank in ranks
            for recorder in rank.recorders
        )
        yield declared.RANK_OWN_TIME_INFO.metric(
            ((*labels[rank.rank], enum_name(OwnTimeSource, rank.own_time_source), rank.own_time_reason), 1)
            for rank in ranks
            if rank.own_time_source
        )

    def _gpu_of(self, rank: Rank) -> tuple[str, str]:
        """Return the labels gpu and UUID of a rank; empty: not known. Of a part of a GPU, those of the whole."""
        gpu = self._node.devices.gpu_of(rank)
        return ("", rank.device_uuid) if gpu is None else (str(gpu.index), gpu.uuid)

    def _gpu_families(self, ranks: list[Rank]) -> Iterator[Metric]:
        run, node, devices = self._node.spec.run, self._node.options.node, self._node.devices
        gpus = [((run, node, str(gpu.index), gpu.uuid), gpu) for gpu in gpus_of(devices, ranks)]
        yield declared.GPU_UP.metric((place, not gpu.gone) for place, gpu in gpus)
        for family, name in _OF_EACH_GPU:
            yield family.metric((place, gpu.readings[name]) for place, gpu in gpus if name in gpu.readings)
        yield declared.GPU_THROTTLED.metric(
            ((*place, reason), reason in gpu.throttles) for place, gpu in gpus if gpu.readings for reason in THROTTLES
        )
        counts = dict(devices.xid_counts)
        yield declared.GPU_XID_ERRORS.metric(
            ((*place, str(xid)), count)
            for place, gpu in gpus
            for (uuid, xid), count in counts.items()
            if uuid == gpu.uuid
        )
        yield declared.GPU_DRIVER_UP.metric([((run, node), devices.answers)] if devices.gpus else [])

    def _checkpoint_families(self, ranks: list[Rank]) -> Iterator[Metric]:
        run, counters = self._node.spec.run, self._checkpoints.saver.counters
        yield declared.STEP_DURATION.histogram([self._node.step_durations.row(run)])
        yield declared.SNAPSHOT_STALL.histogram([counters.stalls.row(run)])
        yield self._single(declared.SNAPSHOTS, self._node.snapshots_total)
        yield self._single(declared.SNAPSHOTS_SKIPPED, sum(rank.snapshots_skipped for rank in ranks))
        yield declared.CHECKPOINT_DURATION.histogram([counters.durations.row(run, "write")])
        yield declared.CHECKPOINT_BYTES.metric(
            [((run, "raw"), counters.raw_bytes), ((run, "stored"), counters.stored_bytes)]
        )
        yield self._single(declared.CHECKPOINT_ATTEMPTS, counters.attempts)
        yield self._single(declared.CHECKPOINT_FAILURES, counters.failures)
        yield self._single(declared.CHECKPOINT_LAST_SUCCESS, counters.last_success_unix_s)

    def _replica_families(self) -> Iterator[Metric]:
        replicas = self._checkpoints.replicas
        counters = replicas.replicator.counters if replicas is not None else ReplicaCounters()
        yield self._single(declared.REPLICA_ATTEMPTS, counters.attempts)
        yield self._single(declared.REPLICA_FAILURES, counters.failures)
        yield self._single(declared.REPLICA_SENT_BYTES, counters.sent_bytes)
        yield self._single(declared.REPLICA_HELD_BYTES, replicas.replicas.held_bytes if replicas is not None else 0)

    def _secondary_families(self) -> Iterator[Metric]:
        run, inventory = self._node.spec.run, self._checkpoints.inventory
        secondary = inventory.secondary
        lag = secondary.lag if secondary else Lag()
        yield self._single(declared.CHECKPOINT_COPY_ATTEMPTS, secondary.attempts_total if secondary else 0)
        yield self._single(declared.CHECKPOINT_COPY_FAILURES, secondary.failures_total if secondary else 0)
        yield self._single(declared.SECONDARY_LAG_CHECKPOINTS, lag.checkpoints)
        yield self._single(declared.SECONDARY_LAG_BYTES, lag.nbytes)
        copies = secondary and secondary.remote.store.retries
        stores = {"primary": inventory.primary.present.store_retries, "secondary": copies}
        yield declared.CHECKPOINT_STORE_ATTEMPTS.metric(
            ((run, name), retries.attempts_total if retries else 0) for name, retries in stores.items()
        )
        yield declared.CHECKPOINT_STORE_FAILURES.metric(
            ((run, name), retries.failures_total if retries else 0) for name, retries in stores.items()
        )

    def _self_families(self, ranks: list[Rank]) -> Iterator[Metric]:
        node, run, link = self._node, self._node.spec.run, self._link
        yield declared.EVENTS_DROPPED.metric(
            [((run, "hooks"), sum(rank.dropped for rank in ranks)), ((run, "agent"), link.events_dropped_total)]
        )
        yield self._single(declared.REPORTS, node.reports_total)
        yield self._single(declared.RECORDER_ATTEMPTS, sum(rank.recorder_attempts for rank in ranks))
        yield self._single(declared.RECORDER_FAILURES, sum(rank.recorder_failures for rank in ranks))
        yield self._single(declared.TREE_LOOK_ATTEMPTS, node.tree_look_attempts_total)
        yield self._single(declared.TREE_LOOK_FAILURES, node.tree_look_failures_total)
        yield self._single(declared.WARM_PARENT_STARTS, self._warm_parent.starts_total)
        yield declared.AGENT_ERRORS.metric(((run, task), number) for task, number in node.errors.unexpected.items())
        refused = node.errors.refused | {"metrics": self.server.dropped_total if self.server is not None else 0}
        yield declared.AGENT_REFUSED.metric(((run, source), number) for source, number in refused.items())
        yield self._single(declared.STORE_UP, link.up)
        yield self._single(declared.STORE_OPERATIONS, link.operations_total)
        yield self._single(declared.STORE_FAILURES, link.failures_total)
        yield declared.BUILD_INFO.metric([((version("holdfast-torch"), "agent"), 1)])
        yield declared.NODE_INFO.metric([((run, node.options.node), 1)])

    def _single(self, family: MetricFamily, value: float) -> Metric:
        """Return a family whose only sample is that of the run."""
        return family.metric([((self._node.spec.run,), value)])

"""The agent's /metrics: read from the node at each scrape, so that nothing stale can be left in it."""

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast_agent.checkpoints.node_checkpoints import NodeCheckpoints
from holdfast_agent.node import Node
from holdfast_agent.processes.rank import Rank
from holdfast_agent.reports.store_link import StoreLink
from holdfast_checkpoint.store.secondary import Lag
from holdfast_proto.metrics_server import MetricsServer
from holdfast_proto.v1.common_pb2 import Phase

PHASES = [phase for phase in Phase.values() if phase != Phase.PHASE_UNSPECIFIED]


def _gauge(name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _counter(name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


class AgentCollector(Collector):
    """Everything one agent exports."""

    def __init__(self, node: Node, link: StoreLink, checkpoints: NodeCheckpoints) -> None:
        self._node = node
        self._link = link
        self._checkpoints = checkpoints
        self.server: MetricsServer | None = None
        """That serves this, once there is one."""

    def collect(self) -> Iterator[Metric]:
        """Yield all families. Runs on the scraper's thread: it reads, and never writes, the node."""
        ranks = list(self._node.ranks.values())
        yield from self._rank_families(ranks)
        yield from self._snapshot_families(ranks)
        yield from self._self_families(ranks)

    def _label(self, rank: Rank) -> list[str]:
        return [self._node.spec.run, str(rank.rank)]

    def _rank_families(self, ranks: list[Rank]) -> Iterator[Metric]:
        run, node = self._node.spec.run, self._node.options.node
        per_rank = ["run", "rank"]
        yield _gauge(
            "holdfast_rank_info",
            "Where a rank runs; joins with hardware exporters on UUID.",
            ["run", "rank", "local_rank", "node", "gpu", "UUID"],
            (([run, str(r.rank), str(r.local_rank), node, _gpu(r), ""], 1.0) for r in ranks),
        )
        plain: list[tuple[str, str, list[float]]] = [
            ("rank_up", "1 while the rank's process lives.", [float(r.is_alive) for r in ranks]),
            ("rank_step", "Step the rank is working on.", [float(r.progress.step) for r in ranks]),
            (
                "rank_last_progress_timestamp_seconds",
                "Unix time of the rank's last change of progress.",
                [r.last_progress_unix_s for r in ranks],
            ),
            ("rank_step_duration_seconds", "Duration of the rank's last step.", [r.last_step_s for r in ranks]),
            (
                "rank_memory_allocated_bytes",
                "Memory allocated by tensors (CPU: resident set).",
                [float(r.memory.allocated_bytes) for r in ranks],
            ),
            (
                "rank_memory_reserved_bytes",
                "Memory reserved by the caching allocator.",
                [float(r.memory.reserved_bytes) for r in ranks],
            ),
        ]
        for name, text, numbers in plain:
            rows = zip(map(self._label, ranks), numbers, strict=True)
            yield _gauge(f"holdfast_{name}", text, per_rank, rows)
        yield _gauge(
            "holdfast_rank_pipeline_bubble_ratio",
            "Share of the rank's last step in which its pipeline stage sat idle.",
            per_rank,
            ((self._label(r), r.pipeline_bubble) for r in ranks if r.pipeline_bubble is not None),
        )
        yield _counter(
            "holdfast_rank_phase_seconds",
            "Time the training thread has spent in each phase.",
            ["run", "rank", "phase"],
            (([*self._label(r), _phase(p)], r.phase_s.get(p, 0.0)) for r in ranks for p in PHASES),
        )
        counters: list[tuple[str, str, list[float]]] = [
            (
                "rank_data_wait_seconds",
                "Time the training thread has waited for data.",
                [r.phase_s.get(Phase.PHASE_DATA, 0.0) for r in ranks],
            ),
            (
                "rank_alloc_retries",
                "Allocations that freed the cache first.",
                [float(r.memory.alloc_retries) for r in ranks],
            ),
            ("rank_ooms", "Out-of-memory errors of the device allocator.", [float(r.memory.ooms) for r in ranks]),
            (
                "rank_snapshot_unchanged_bytes",
                "Bytes of snapshots that the slot held already.",
                [float(r.snapshots_unchanged_bytes) for r in ranks],
            ),
            ("hook_reporter_cpu_seconds", "CPU time of the hooks' reporter thread.", [r.reporter_cpu_s for r in ranks]),
        ]
        for name, text, numbers in counters:
            yield _counter(f"holdfast_{name}", text, per_rank, zip(map(self._label, ranks), numbers, strict=True))
        yield _gauge(
            "holdfast_rank_collective_seq",
            "Newest sequence number in a process group.",
            ["run", "rank", "group", "point"],
            (
                ([*self._label(r), group.description or group.group, point], float(seq))
                for r in ranks
                for group in r.progress.groups
                for point, seq in (("enqueued", group.enqueued), ("completed", group.completed))
            ),
        )

    def _snapshot_families(self, ranks: list[Rank]) -> Iterator[Metric]:
        labels = {"run": self._node.spec.run}
        run = [self._node.spec.run]
        counters = self._checkpoints.saver.counters
        yield self._node.step_durations.family("holdfast_step_duration_seconds", "Duration of steps.", labels)
        yield counters.stalls.family(
            "holdfast_snapshot_stall_seconds", "How long training threads waited for a snapshot.", labels
        )
        yield counters.durations.family(
            "holdfast_checkpoint_duration_seconds",
            "From the snapshot to the committed checkpoint.",
            {**labels, "operation": "write"},
        )
        yield _counter("holdfast_snapshots", "Snapshots taken.", ["run"], [(run, self._node.snapshots_total)])
        skipped = sum(r.snapshots_skipped for r in ranks)
        yield _counter("holdfast_snapshots_skipped", "Snapshots due and not taken.", ["run"], [(run, skipped)])
        yield _gauge(
            "holdfast_checkpoint_bytes",
            "Size of the newest checkpoint, before and after compression.",
            ["run", "form"],
            [([*run, "raw"], counters.raw_bytes), ([*run, "stored"], counters.stored_bytes)],
        )
        yield _counter("holdfast_checkpoint_attempts", "Checkpoints begun.", ["run"], [(run, counters.attempts)])
        yield _counter("holdfast_checkpoint_failures", "Checkpoints that failed.", ["run"], [(run, counters.failures)])
        yield from self._secondary_families(run)
        yield _gauge(
            "holdfast_checkpoint_last_success_timestamp_seconds",
            "Unix time of the newest checkpoint that this agent committed.",
            ["run"],
            [(run, counters.last_success_unix_s)],
        )

    def _secondary_families(self, run: list[str]) -> Iterator[Metric]:
        secondary = self._checkpoints.inventory.secondary
        attempts, failures = (secondary.attempts_total, secondary.failures_total) if secondary else (0, 0)
        lag = secondary.lag if secondary else Lag()
        yield _counter(
            "holdfast_checkpoint_copy_attempts", "Copies to the secondary begun.", ["run"], [(run, attempts)]
        )
        yield _counter(
            "holdfast_checkpoint_copy_failures", "Copies to the secondary that failed.", ["run"], [(run, failures)]
        )
        yield _gauge(
            "holdfast_checkpoint_secondary_lag_checkpoints",
            "Checkpoints that the secondary lacks.",
            ["run"],
            [(run, lag.checkpoints)],
        )
        yield _gauge(
            "holdfast_checkpoint_secondary_lag_bytes",
            "Bytes of this node that the secondary lacks.",
            ["run"],
            [(run, lag.nbytes)],
        )
        stores = {
            "primary": self._checkpoints.inventory.primary.store_retries,
            "secondary": secondary and secondary.remote.store.retries,
        }
        yield _counter(
            "holdfast_checkpoint_store_attempts",
            "Calls of an object store, every try counted.",
            ["run", "location"],
            [([*run, name], retries.attempts_total if retries else 0) for name, retries in stores.items()],
        )
        yield _counter(
            "holdfast_checkpoint_store_failures",
            "Calls of an object store that failed.",
            ["run", "location"],
            [([*run, name], retries.failures_total if retries else 0) for name, retries in stores.items()],
        )

    def _self_families(self, ranks: list[Rank]) -> Iterator[Metric]:
        run, link = [self._node.spec.run], self._link
        yield _counter(
            "holdfast_events_dropped",
            "Records lost because a buffer was full.",
            ["run", "component"],
            [([*run, "hooks"], sum(r.dropped for r in ranks)), ([*run, "agent"], link.events_dropped_total)],
        )
        attempts, failures = sum(r.recorder_attempts for r in ranks), sum(r.recorder_failures for r in ranks)
        yield _counter("holdfast_hook_recorder_attempts", "Polls of collective progress.", ["run"], [(run, attempts)])
        yield _counter(
            "holdfast_hook_recorder_failures", "Polls of collective progress that failed.", ["run"], [(run, failures)]
        )
        yield _counter(
            "holdfast_process_tree_look_attempts",
            "Looks at the process trees of ranks without progress.",
            ["run"],
            [(run, self._node.tree_look_attempts_total)],
        )
        yield _counter(
            "holdfast_process_tree_look_failures",
            "Looks at a rank's process tree that could not tell if it moves.",
            ["run"],
            [(run, self._node.tree_look_failures_total)],
        )
        yield _counter("holdfast_reports", "Reports received from ranks.", ["run"], [(run, self._node.reports_total)])
        errors = self._node.errors
        yield _counter(
            "holdfast_agent_errors",
            "Unexpected errors in the agent itself.",
            ["run", "task"],
            [([*run, task], number) for task, number in errors.unexpected.items()],
        )
        refused = errors.refused | {"metrics": self.server.dropped_total if self.server is not None else 0}
        yield _counter(
            "holdfast_agent_refused",
            "Input that made no sense.",
            ["run", "source"],
            [([*run, source], number) for source, number in refused.items()],
        )
        yield _gauge("holdfast_store_up", "1 while Redis answers.", ["run"], [(run, float(link.up))])
        yield _counter("holdfast_store_operations", "Redis operations tried.", ["run"], [(run, link.operations_total)])
        yield _counter("holdfast_store_failures", "Redis operations failed.", ["run"], [(run, link.failures_total)])
        yield _gauge(
            "holdfast_build_info", "Version.", ["version", "component"], [([version("holdfast-torch"), "agent"], 1.0)]
        )
        yield _gauge(
            "holdfast_node_info", "Node of this agent.", ["run", "node"], [([*run, self._node.options.node], 1.0)]
        )


def _gpu(rank: Rank) -> str:
    return rank.device.partition(":")[2]


def _phase(number: int) -> str:
    return Phase.Name(number).removeprefix("PHASE_").lower()

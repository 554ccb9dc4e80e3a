"""Every metric family that an agent exports: the only place with their names, kinds, labels and meanings.

The collector fills them; docs/metrics.md, the dashboards and their tests read them. The metrics page keeps this order.
"""

from dataclasses import dataclass, field

from holdfast_agent.devices.gpu import THROTTLES
from holdfast_agent.processes.containment import JOBS, SOURCES
from holdfast_base.metric_family import Histogram, counter, declared_in, gauge, histogram
from holdfast_proto.message_json import enum_names
from holdfast_proto.v1.common_pb2 import Phase

STEP_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
STALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass
class WriterCounters:
    """Numbers of the checkpoints that a node writes."""

    attempts: int = 0
    failures: int = 0
    last_success_unix_s: float = 0.0
    raw_bytes: int = 0
    stored_bytes: int = 0
    durations: Histogram = field(default_factory=lambda: Histogram(STEP_BUCKETS_S))
    stalls: Histogram = field(default_factory=lambda: Histogram(STALL_BUCKETS_S))


PHASES = enum_names(Phase)
"""Phase as the label spells it -> its number in messages."""

# Ranks.

RANK_INFO = gauge(
    "rank_info",
    "run rank local_rank node gpu? UUID?",
    "Place where a rank runs; always 1. gpu and UUID are the number and the UUID of its GPU as nvidia-smi shows them, "
    "as soon as the rank has used it. gpu is missing if the agent does not see the driver's files. Ranks on CPU have "
    "neither label.",
)
RANK_UP = gauge("rank_up", "run rank", "1 while the rank's process is alive, else 0.")
RANK_STEP = gauge("rank_step", "run rank", "Step that the rank is working on; -1 before the first.")
RANK_LAST_PROGRESS = gauge(
    "rank_last_progress_timestamp_seconds",
    "run rank",
    "Unix time of the newest change of the rank's step, phase or collective numbers.",
)
RANK_STEP_DURATION = gauge("rank_step_duration_seconds", "run rank", "Duration of the rank's newest finished step.")
RANK_PIPELINE_BUBBLE = gauge(
    "rank_pipeline_bubble_ratio",
    "run rank",
    "Share of the rank's newest finished step in which its pipeline stage was idle, if the trainer reports it.",
)
RANK_PHASE_TIME = counter(
    "rank_phase_seconds_total",
    "run rank phase",
    "Time that the training thread has spent in each phase, within steps and outside. The time of a step counts "
    "when the step ends, other time when the phase ends.",
    phase=PHASES,
)
RANK_DATA_WAIT = counter(
    "rank_data_wait_seconds_total", "run rank", "Time that the training thread has waited for its data loader."
)
RANK_CALL_WAIT = counter(
    "rank_communication_wait_seconds_total",
    "run rank",
    "Time that the training thread has slept, in forward, backward or the optimizer, while a call with other ranks was "
    "pending: communication that nothing hides, and waits for slower ranks. Of ranks on CPU only. An estimate from "
    "about five samples a second.",
)
RANK_MEMORY_ALLOCATED = gauge(
    "rank_memory_allocated_bytes", "run rank", "Device memory that tensors occupy; on CPU the resident set."
)
RANK_MEMORY_RESERVED = gauge(
    "rank_memory_reserved_bytes",
    "run rank",
    "Device memory that torch's caching allocator has reserved; on CPU the resident set.",
)
RANK_ALLOC_RETRIES = counter(
    "rank_alloc_retries_total", "run rank", "Allocations for which torch first had to empty its cache."
)
RANK_OOMS = counter("rank_ooms_total", "run rank", "Allocations that failed for lack of device memory.")
RANK_SNAPSHOT_UNCHANGED = counter(
    "rank_snapshot_unchanged_bytes_total",
    "run rank",
    "Bytes of snapshots that were not copied because the slot already held them: frozen parameters and buffers.",
)
RANK_COLLECTIVE_SEQ = gauge(
    "rank_collective_seq",
    "run rank group point",
    "Number of the newest collective in a process group on gloo that the rank has enqueued or completed. NCCL's "
    "recorder has no such number: it mixes collectives with point-to-point calls.",
    point=("enqueued", "completed"),
)
RANK_RECORDER_INFO = gauge(
    "rank_recorder_info",
    "run rank source backend",
    "Recorder of torch that has the calls of the rank's groups on a backend; always 1. source is generic (gloo's), "
    "nccl (NCCL's own), backend (one for this backend alone: torch 2.15) or none: hangs then have no call.",
)
RANK_OWN_TIME_INFO = gauge(
    "rank_own_time_info",
    "run rank source reason?",
    "How the time that the rank needs for itself is measured; always 1. Stragglers are found by it. source is host "
    "(its training thread, seen from outside), events (events on its GPU) or none. With none, work and waiting on its "
    "GPU cannot be separated, and reason says why.",
)

# GPUs of the ranks, on nodes with NVIDIA's driver.

_GPU = "run node gpu UUID"
GPU_UP = gauge("gpu_up", _GPU, "1 while the driver reaches the GPU and needs no reset of it, else 0.")
GPU_UTILIZATION = gauge("gpu_utilization_ratio", _GPU, "Share of the last moments in which a kernel ran on the GPU.")
GPU_MEMORY_USED = gauge("gpu_memory_used_bytes", _GPU, "Memory of the GPU that is in use, by any process.")
GPU_MEMORY_TOTAL = gauge("gpu_memory_total_bytes", _GPU, "Memory of the GPU.")
GPU_TEMPERATURE = gauge("gpu_temperature_celsius", _GPU, "Temperature of the GPU.")
GPU_POWER = gauge("gpu_power_watts", _GPU, "Power that the GPU draws.")
GPU_SM_CLOCK = gauge("gpu_sm_clock_hertz", _GPU, "Clock of the GPU's multiprocessors.")
GPU_MEMORY_CLOCK = gauge("gpu_memory_clock_hertz", _GPU, "Clock of the GPU's memory.")
GPU_THROTTLED = gauge(
    "gpu_throttled",
    f"{_GPU} reason",
    "1 while the clocks of the GPU are lower for this reason, else 0. All but sw_power_cap mean heat or too little "
    "power.",
    reason=THROTTLES,
)
GPU_ECC_ERRORS = counter(
    "gpu_ecc_uncorrected_errors_total",
    _GPU,
    "Errors of the GPU's memory that ECC could not correct, since the driver was loaded.",
)
GPU_ROW_REMAP_PENDING = gauge(
    "gpu_row_remap_pending", _GPU, "1 if a bad row of the GPU's memory is remapped at its next reset, else 0."
)
GPU_ROW_REMAP_FAILED = gauge(
    "gpu_row_remap_failed", _GPU, "1 if a bad row of the GPU's memory could not be remapped, else 0."
)
GPU_NVLINK_ERRORS = counter(
    "gpu_nvlink_errors_total", _GPU, "Errors of the GPU's NVLinks: checksums, replays and recoveries together."
)
GPU_XID_ERRORS = counter(
    "gpu_xid_errors_total", f"{_GPU} xid", "Xids, errors that the driver reports, since the agent started."
)
GPU_DRIVER_UP = gauge(
    "gpu_driver_up",
    "run node",
    "1 while the driver answers the agent, else 0: it hangs, or the package nvidia-ml-py is missing.",
)

# Snapshots and checkpoints.

STEP_DURATION = histogram(
    "step_duration_seconds", "run", "Duration of the steps of this node's ranks.", buckets=STEP_BUCKETS_S
)
SNAPSHOT_STALL = histogram(
    "snapshot_stall_seconds",
    "run",
    "Time that the training thread waited for the copy of a snapshot.",
    buckets=STALL_BUCKETS_S,
)
SNAPSHOTS = counter("snapshots_total", "run", "Snapshots that this node's ranks have taken.")
SNAPSHOTS_SKIPPED = counter(
    "snapshots_skipped_total", "run", "Snapshots that were due and not taken: no slot was free, or no memory."
)
CHECKPOINT_DURATION = histogram(
    "checkpoint_duration_seconds",
    "run operation",
    "Time from a snapshot to the commit of its checkpoint.",
    buckets=STEP_BUCKETS_S,
    operation=("write",),
)
CHECKPOINT_BYTES = gauge(
    "checkpoint_bytes",
    "run form",
    "Size of the newest checkpoint that this agent committed, before and after compression.",
    form=("raw", "stored"),
)
CHECKPOINT_ATTEMPTS = counter(
    "checkpoint_attempts_total", "run", "Checkpoints that this agent has committed or could not write."
)
CHECKPOINT_FAILURES = counter(
    "checkpoint_failures_total", "run", "Checkpoints that this agent could not write or verify."
)
REPLICA_ATTEMPTS = counter("replica_attempts_total", "run", "Replica snapshots that this agent has begun to make.")
REPLICA_FAILURES = counter(
    "replica_failures_total", "run", "Steps of which this agent could not make or send the replica snapshots."
)
REPLICA_SENT_BYTES = counter(
    "replica_sent_bytes_total", "run", "Bytes of replica snapshots that the partner node has taken."
)
REPLICA_HELD_BYTES = gauge(
    "replica_held_bytes", "run", "Memory of the replica snapshots on this node: its own ranks' and its partner's."
)
CHECKPOINT_COPY_ATTEMPTS = counter(
    "checkpoint_copy_attempts_total", "run", "Copies of a checkpoint to the secondary that were begun or resumed."
)
CHECKPOINT_COPY_FAILURES = counter(
    "checkpoint_copy_failures_total", "run", "Attempts to copy a checkpoint to the secondary that failed."
)
SECONDARY_LAG_CHECKPOINTS = gauge(
    "checkpoint_secondary_lag_checkpoints",
    "run",
    "Committed checkpoints that the secondary should have and lacks; 0 without a secondary.",
)
SECONDARY_LAG_BYTES = gauge(
    "checkpoint_secondary_lag_bytes", "run", "Size of this node's shards of the checkpoints that the secondary lacks."
)
CHECKPOINT_STORE_ATTEMPTS = counter(
    "checkpoint_store_attempts_total",
    "run location",
    "Calls of the object store that holds the checkpoints, each retry counted; 0 for folders.",
    location=("primary", "secondary"),
)
CHECKPOINT_STORE_FAILURES = counter(
    "checkpoint_store_failures_total",
    "run location",
    "Calls of the object store that failed, whether they were retried or not.",
    location=("primary", "secondary"),
)
CHECKPOINT_LAST_SUCCESS = gauge(
    "checkpoint_last_success_timestamp_seconds",
    "run",
    "Unix time of the newest checkpoint that this agent committed; 0 before the first.",
)

# The agent and the hooks of its ranks.

EVENTS_DROPPED = counter(
    "events_dropped_total",
    "run component",
    "Records lost because a buffer was full.",
    component=("hooks", "agent"),
)
REPORTS = counter("reports_total", "run", "Reports received from this node's ranks.")
RECORDER_ATTEMPTS = counter(
    "hook_recorder_attempts_total", "run", "Times that the hooks have read the progress of collectives."
)
RECORDER_FAILURES = counter(
    "hook_recorder_failures_total", "run", "Times that the hooks could not read the progress of collectives."
)
TREE_LOOK_ATTEMPTS = counter(
    "process_tree_look_attempts_total", "run", "Looks at the process tree of a rank without progress."
)
TREE_LOOK_FAILURES = counter(
    "process_tree_look_failures_total", "run", "Looks that could not tell whether a rank's process tree moves."
)
WARM_PARENT_STARTS = counter(
    "warm_parent_starts_total",
    "run",
    "Warm parents that this agent has started: one at first, unless it found one, then one for each that died.",
)
REPORTER_CPU = counter("hook_reporter_cpu_seconds_total", "run rank", "CPU time of the hooks' reporter thread.")
AGENT_ERRORS = counter(
    "agent_errors_total",
    "run task",
    "Unexpected errors in a task of the agent. The task continues; the log has the first error of each kind.",
    task=JOBS,
)
AGENT_REFUSED = counter(
    "agent_refused_total",
    "run source",
    "Invalid messages, parts of messages and files that the agent refused, and connections that it dropped.",
    source=SOURCES,
)
STORE_UP = gauge("store_up", "run", "1 while Redis answers, else 0.")
STORE_OPERATIONS = counter("store_operations_total", "run", "Calls of Redis.")
STORE_FAILURES = counter("store_failures_total", "run", "Calls of Redis that failed.")
BUILD_INFO = gauge("build_info", "version component", "Version of this process; always 1.", component=("agent",))
NODE_INFO = gauge("node_info", "run node", "Name of this node; always 1.")

FAMILIES = declared_in(globals())

"""What every agent exports."""

from dashboards.metric import counter, gauge, histogram

PHASES = ("init", "data", "forward_backward", "optimizer", "checkpoint", "eval", "idle")

AGENT_METRICS = (
    gauge(
        "rank_info",
        "run rank local_rank node gpu UUID",
        "Where a rank runs; always 1. gpu and UUID are empty without a GPU; UUID is spelt as dcgm-exporter spells it.",
    ),
    gauge("rank_up", "run rank", "1 while the rank's process is alive, else 0."),
    gauge("rank_step", "run rank", "Step that the rank is working on; -1 before the first."),
    gauge(
        "rank_last_progress_timestamp_seconds",
        "run rank",
        "Unix time of the newest change of the rank's step, phase or collective numbers.",
    ),
    gauge("rank_step_duration_seconds", "run rank", "Duration of the rank's newest finished step."),
    gauge(
        "rank_pipeline_bubble_ratio",
        "run rank",
        "Share of the rank's newest finished step in which its pipeline stage sat idle, where reported.",
    ),
    counter("rank_phase_seconds_total", "run rank phase", "Time the rank spent in each phase.", phase=PHASES),
    counter("rank_data_wait_seconds_total", "run rank", "Time the rank waited for its data loader."),
    gauge("rank_memory_allocated_bytes", "run rank", "Device memory held by tensors; on CPU the resident set."),
    gauge("rank_memory_reserved_bytes", "run rank", "Device memory held by torch's caching allocator."),
    counter("rank_alloc_retries_total", "run rank", "Allocations that succeeded only after the cache was emptied."),
    counter("rank_ooms_total", "run rank", "Allocations that failed for lack of device memory."),
    counter(
        "rank_snapshot_unchanged_bytes_total",
        "run rank",
        "Bytes of snapshots that were not copied, as the slot held them already: frozen parameters and buffers.",
    ),
    gauge(
        "rank_collective_seq",
        "run rank group point",
        "Newest collective of a process group that the rank has enqueued or completed.",
        point=("enqueued", "completed"),
    ),
    histogram("step_duration_seconds", "run", "Duration of the steps of this node's ranks."),
    histogram("snapshot_stall_seconds", "run", "How long the training thread waited for a snapshot's copy."),
    counter("snapshots_total", "run", "Snapshots that this node's ranks completed."),
    counter("snapshots_skipped_total", "run", "Snapshots that were due and not taken: no free slot, or no memory."),
    histogram(
        "checkpoint_duration_seconds",
        "run operation",
        "Time from a snapshot to the checkpoint committed from it.",
        operation=("write",),
    ),
    gauge(
        "checkpoint_bytes",
        "run form",
        "Size of the newest checkpoint that this agent committed, before and after compression.",
        form=("raw", "stored"),
    ),
    counter("checkpoint_attempts_total", "run", "Checkpoints that this node began to write."),
    counter("checkpoint_failures_total", "run", "Checkpoints that this node could not write or verify."),
    counter("checkpoint_copy_attempts_total", "run", "Copies of a checkpoint to the secondary, begun or gone on with."),
    counter("checkpoint_copy_failures_total", "run", "Copies of a checkpoint to the secondary that failed so far."),
    gauge(
        "checkpoint_secondary_lag_checkpoints",
        "run",
        "Committed checkpoints that the secondary should have and lacks; 0 without a secondary.",
    ),
    gauge("checkpoint_secondary_lag_bytes", "run", "Size of this node's shards of these checkpoints."),
    counter(
        "checkpoint_store_attempts_total",
        "run location",
        "Calls of the object store that holds the checkpoints, every try counted; 0 for folders.",
        location=("primary", "secondary"),
    ),
    counter(
        "checkpoint_store_failures_total",
        "run location",
        "Calls of the object store that failed and were tried again or given up.",
        location=("primary", "secondary"),
    ),
    gauge(
        "checkpoint_last_success_timestamp_seconds",
        "run",
        "Unix time of the newest checkpoint that this agent committed; 0 before the first.",
    ),
    counter(
        "events_dropped_total",
        "run component",
        "Records lost because a buffer was full.",
        component=("hooks", "agent"),
    ),
    counter("reports_total", "run", "Reports received from this node's ranks."),
    counter("hook_recorder_attempts_total", "run", "Polls of collective progress in the hooks."),
    counter("hook_recorder_failures_total", "run", "Polls of collective progress that failed in the hooks."),
    counter("process_tree_look_attempts_total", "run", "Looks at the process trees of ranks without progress."),
    counter(
        "process_tree_look_failures_total", "run", "Looks at a rank's process tree that could not tell if it moves."
    ),
    counter("hook_reporter_cpu_seconds_total", "run rank", "CPU time of the hooks' reporter thread."),
    gauge("store_up", "run", "1 while Redis answers, else 0."),
    counter("store_operations_total", "run", "Redis calls."),
    counter("store_failures_total", "run", "Redis calls that failed."),
    gauge("build_info", "version component", "Version of this process; always 1.", component=("agent",)),
    gauge("node_info", "run node", "Name of this node; always 1."),
)

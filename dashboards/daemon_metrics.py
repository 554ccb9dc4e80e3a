"""What the daemon exports. Run-level series come from the run's leader alone; see docs/metrics.md."""

from dashboards.metric import counter, gauge, histogram

RUN_STATES = ("waiting", "starting", "running", "leaving", "gathering", "stopping", "finished", "failed")
RANK_STATES = ("starting", "running", "exited", "stalled")
RESTART_REASONS = (
    "dead_rank",
    "hung_collective",
    "mismatched_order",
    "transport",
    "lost_node",
    "data_stall",
    "standstill",
)
INCIDENT_KINDS = (
    *RESTART_REASONS,
    "non_finite",
    "loss_spike",
    "checkpoint_failed",
    "bad_configuration",
    "duplicate_samples",
    "overflow_loop",
    "straggler",
    "silent_corruption",
    "gradient_explosion",
    "memory_creep",
    "allocator_retries",
    "throughput_drop",
    "missing_loss",
    "late_exit",
)
DETECTORS = (
    "unreachable",
    "dead_rank",
    "lost_node",
    "mismatched_order",
    "hung_collective",
    "data_stall",
    "transport",
    "standstill",
    "late_exit",
    "non_finite",
    "missing_loss",
    "loss_spike",
    "overflow_loop",
    "duplicate_samples",
    "silent_corruption",
    "gradient_explosion",
    "straggler",
    "data_share",
    "throughput_drop",
    "memory_creep",
    "allocator_retries",
)
QUANTITIES = ("loss", "validation_loss", "grad_norm", "update_norm", "balance_loss", "gradient")

RUN_METRICS = (
    gauge(
        "run_info",
        "run mode preset",
        "How the run is watched; always 1.",
        mode=("observe", "act"),
        preset=("fast", "default", "patient"),
    ),
    gauge("run_state", "run state", "1 for the state that the run is in, 0 for the others.", state=RUN_STATES),
    gauge("ranks", "run state", "Ranks in each state. A stalled rank runs without progress.", state=RANK_STATES),
    gauge("run_world_size", "run", "Ranks of the current generation."),
    gauge("run_generation", "run", "Incarnation of the run's world; every restart adds one."),
    counter("run_restarts_total", "run reason", "Restarts of the run.", reason=RESTART_REASONS),
    gauge("run_step", "run", "Newest step that the run has completed; -1 before the first."),
    gauge("loss", "run", "Training loss of the newest step, mean over the ranks that reported one."),
    gauge("validation_loss", "run", "Newest validation loss."),
    gauge("loss_zscore", "run", "Distance of the newest loss from the recent median, in robust standard deviations."),
    gauge("grad_norm", "run", "Global gradient norm of the newest step."),
    gauge("learning_rate", "run", "Learning rate of the newest step."),
    gauge("update_norm", "run", "Global norm of the parameters' change in the newest step."),
    gauge("loss_scale", "run", "Factor on the loss of the newest step, where the precision needs one."),
    gauge("balance_loss", "run", "Load-balance loss of the experts' router in the newest step, mean over ranks."),
    gauge(
        "mfu_ratio",
        "run",
        "Model FLOPs utilisation of the newest step, mean over ranks: the model's FLOP/s over the devices' peak in the "
        "dtype used, as the trainer reports it.",
    ),
    gauge(
        "pipeline_bubble_ratio",
        "run",
        "Share of the newest step in which pipeline stages sat idle, mean over ranks.",
    ),
    counter(
        "nonfinite_total",
        "run quantity",
        "Reports of NaN or infinity. Norms of skipped steps are left out.",
        quantity=QUANTITIES,
    ),
    counter(
        "suspicions_total",
        "run outcome",
        "Times that the run seemed to stand still: raised, and whether a verdict confirmed it or it resolved itself.",
        outcome=("raised", "confirmed", "resolved"),
    ),
    counter(
        "anomalies_total",
        "run kind",
        "Odd losses: blip, one step; spike, most of several steps; missing, none reported.",
        kind=("blip", "spike", "missing"),
    ),
    counter(
        "skipped_steps_total",
        "run reason",
        "Steps that the optimizer skipped: overflow, gradients were not finite.",
        reason=("overflow",),
    ),
    counter("tokens_total", "run", "Tokens trained on, sum over ranks."),
    counter("dropped_tokens_total", "run", "Tokens that experts dropped for lack of capacity, sum over ranks."),
    counter(
        "duplicate_steps_total",
        "run",
        "Steps in which data-parallel ranks shared samples, or that used samples of an earlier step.",
    ),
    counter("incidents_total", "run kind", "Incidents.", kind=INCIDENT_KINDS),
    counter("faults_injected_total", "run kind", "Faults injected on purpose, by their name in the catalogue."),
    gauge(
        "incident_open",
        "run kind",
        "1 while the run stands still, or recovers, because of an incident of this kind; else 0.",
        kind=INCIDENT_KINDS,
    ),
    gauge(
        "restarts_given_up",
        "run",
        "1 while the run stands still and is not restarted any more, because restarts have not helped; else 0.",
    ),
    histogram("detection_latency_seconds", "run", "Time from the last progress to the verdict."),
    histogram(
        "recovery_duration_seconds",
        "run stage",
        "Time from the last progress to the next step that all ranks complete.",
        stage=("total",),
    ),
    counter("lost_seconds_total", "run cause", "Time in which the run made no new progress, by cause."),
    counter("lost_steps_total", "run", "Completed steps that a restart had to repeat."),
    counter("productive_seconds_total", "run", "Time in which the run made new progress."),
    gauge(
        "run_checkpoint_last_success_timestamp_seconds",
        "run",
        "Unix time of the run's newest committed checkpoint; 0 before the first.",
    ),
    gauge(
        "run_checkpoint_interval_seconds",
        "run",
        "Expected time between checkpoints at the newest step's pace; 0 when none are scheduled.",
    ),
    counter("commands_refused_total", "run", "Orders that agents refused: from an older leader or generation."),
    counter("incident_log_attempts_total", "run", "Versions of incidents to be appended to the daemon's log."),
    counter("incident_log_failures_total", "run", "Versions of incidents that could not be appended to the log."),
    counter("incident_folder_attempts_total", "run", "Times that an incident's folder was to be written."),
    counter("incident_folder_failures_total", "run", "Times that an incident's folder could not be written."),
    counter("recording_dropped_turns_total", "run", "Turns that the recording for replays had no room for."),
)

SELF_METRICS = (
    gauge("coordinator_leader", "run", "1 if this daemon leads the run, 0 if it stands by."),
    histogram("coordinator_tick_duration_seconds", "", "Duration of one turn of a run's core."),
    counter("coordinator_slow_ticks_total", "", "Turns that took longer than the time between them."),
    counter(
        "coordinator_tick_failures_total",
        "",
        "Turns of a run's core that failed. What they failed on was passed over; the daemon's log has the traceback.",
    ),
    counter("run_shell_failures_total", "", "Times that leading a run failed and was begun anew."),
    counter("run_names_refused_total", "", "Names in the list of runs that cannot be the name of a run, at each look."),
    counter(
        "messages_refused_total",
        "run source",
        "Values in the store that were refused: damaged, out of range, or of another version of Holdfast.",
        source=("spec", "record", "incident", "node", "event", "key"),
    ),
    counter("detector_attempts_total", "detector", "Times that a detector has looked.", detector=DETECTORS),
    counter("detector_seconds_total", "detector", "Time that a detector took.", detector=DETECTORS),
    counter("detector_failures_total", "detector", "Looks of a detector that failed.", detector=DETECTORS),
    gauge("store_up", "", "1 while Redis answers, else 0."),
    counter("store_operations_total", "", "Redis calls."),
    counter("store_failures_total", "", "Redis calls that failed."),
    gauge("build_info", "version component", "Version of this process; always 1.", component=("daemon",)),
)

DAEMON_METRICS = RUN_METRICS + SELF_METRICS

"""Metric families about a run, which the run's leader exports: the only place with their names and meanings.

The collector fills them; docs/metrics.md, the dashboards and their tests read them. The metrics page keeps this order.
"""

from holdfast_base.metric_family import counter, declared_in, gauge, histogram
from holdfast_core.accounting.latencies import LATENCY_BUCKETS_S
from holdfast_core.detectors.framework import RECOVERABLE
from holdfast_core.naming import kind_name
from holdfast_daemon.notify.delivery import OUTCOMES
from holdfast_proto import vocabulary
from holdfast_proto.message_json import enum_names
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import TIME_USES

MODES = tuple(enum_names(store.Mode))
PRESETS = tuple(enum_names(store.Preset))
RUN_STATES = enum_names(store.RunPhase)
"""State as the label spells it -> the phase's number in messages."""
INCIDENT_KINDS = enum_names(store.VerdictKind)
"""Kind as the label spells it -> its number in messages."""
RESTART_REASONS = tuple(kind_name(kind) for kind in RECOVERABLE)

# The run and its ranks.

RUN_INFO = gauge("run_info", "run mode preset", "How Holdfast watches the run; always 1.", mode=MODES, preset=PRESETS)
RUN_STATE = gauge("run_state", "run state", "1 for the state that the run is in, 0 for the others.", state=RUN_STATES)
RANKS = gauge(
    "ranks",
    "run state",
    "Ranks in each state. A stalled rank is also running: it has made no progress for half of its deadline or longer.",
    state=("starting", "running", "exited", "stalled"),
)
RUN_WORLD_SIZE = gauge("run_world_size", "run", "Ranks of the current generation.")
RUN_GENERATION = gauge("run_generation", "run", "Incarnation of the run's world; every restart adds one.")
RUN_RESTARTS = counter(
    "run_restarts_total",
    "run reason",
    "Generations started after a fault, by the kind of its incident.",
    reason=RESTART_REASONS,
)
RUN_STEP = gauge(
    "run_step", "run", "Newest step that all ranks have completed and no restart has undone; -1 before the first."
)

NODES_QUARANTINED = gauge(
    "nodes_quarantined",
    "run",
    "Nodes of the run, and its spares, that should not train. `holdfast nodes` says why.",
)

# Numbers of the newest step, and sums over all steps.

LOSS = gauge("loss", "run", "Training loss of the newest step, mean over the ranks that report one.")
VALIDATION_LOSS = gauge("validation_loss", "run", "Newest validation loss.")
LOSS_ZSCORE = gauge(
    "loss_zscore", "run", "Distance of the newest loss from the recent median, in robust standard deviations."
)
GRAD_NORM = gauge("grad_norm", "run", "Global gradient norm of the newest step.")
LEARNING_RATE = gauge("learning_rate", "run", "Learning rate of the newest step.")
UPDATE_NORM = gauge("update_norm", "run", "Global norm of the parameters' change in the newest step.")
LOSS_SCALE = gauge("loss_scale", "run", "Factor on the loss of the newest step, if the precision needs one.")
BALANCE_LOSS = gauge(
    "balance_loss", "run", "Load-balance loss of the experts' router in the newest step, mean over ranks."
)
MFU = gauge(
    "mfu_ratio",
    "run",
    "Model FLOPs utilisation of the newest step, mean over ranks. The trainer reports it: the model's FLOP/s divided "
    "by the devices' peak in the dtype used.",
)
PIPELINE_BUBBLE = gauge(
    "pipeline_bubble_ratio", "run", "Share of the newest step in which pipeline stages were idle, mean over ranks."
)
REPLAY = gauge(
    "replay_seconds",
    "run",
    "Time that the newest replayed step took in addition to its own, on the slowest rank; absent if none was replayed.",
)
LOGGED = gauge(
    "logged_number",
    "run name",
    "Newest value of each number that the script logs under a name of its own, from the lowest rank that logs it.",
)
NONFINITE = counter(
    "nonfinite_total",
    "run quantity",
    "Reports of NaN or infinity. Norms of skipped steps do not count.",
    quantity=vocabulary.NONFINITE_QUANTITIES,
)
SUSPICIONS = counter(
    "suspicions_total",
    "run outcome",
    "Times that the run seemed to stand still (raised), and how that ended: a verdict, or new progress.",
    outcome=("raised", "confirmed", "resolved"),
)
ANOMALIES = counter(
    "anomalies_total",
    "run kind",
    "Odd losses. blip: one step is far off; spike: 3 of 5 steps are; missing: no loss is reported any more.",
    kind=("blip", "spike", "missing"),
)
SKIPPED_STEPS = counter(
    "skipped_steps_total",
    "run reason",
    "Steps that the optimizer skipped because gradients were not finite.",
    reason=("overflow",),
)
TOKENS = counter("tokens_total", "run", "Tokens trained on, sum over ranks.")
DROPPED_TOKENS = counter(
    "dropped_tokens_total", "run", "Tokens that experts dropped for lack of capacity, sum over ranks."
)
DUPLICATE_STEPS = counter(
    "duplicate_steps_total",
    "run",
    "Steps in which data-parallel ranks shared samples, or that used samples of an earlier step.",
)

SLOW_DATA = counter(
    "slow_data_total",
    "run",
    "Times that Holdfast reported that steps wait too long for data. The run trains. Data that never comes does not "
    "count.",
)

# Incidents and what they cost.

INCIDENTS = counter("incidents_total", "run kind", "Incidents by kind.", kind=INCIDENT_KINDS)
FAULTS_INJECTED = counter(
    "faults_injected_total", "run kind", "Faults injected on purpose, by their name in `holdfast inject --list`."
)
INCIDENT_OPEN = gauge(
    "incident_open",
    "run kind",
    "1 while the run stands still or recovers because of an incident of this kind, else 0. In mode `observe` a lost "
    "rank stays open until its launcher starts the ranks again, or until another rank makes progress.",
    kind=INCIDENT_KINDS,
)
RESTARTS_GIVEN_UP = gauge(
    "restarts_given_up",
    "run",
    "1 while the run stands still and Holdfast no longer restarts it, because restarts have not helped; else 0.",
)
DETECTION_LATENCY = histogram(
    "detection_latency_seconds",
    "run",
    "Time from the last progress to the verdict.",
    buckets=LATENCY_BUCKETS_S,
)
RECOVERY_DURATION = histogram(
    "recovery_duration_seconds",
    "run stage",
    "Time from the last progress to the next step that all ranks complete.",
    buckets=LATENCY_BUCKETS_S,
    stage=("total",),
)
GOODPUT = gauge(
    "goodput_ratio",
    "run",
    "Share of the run's wall time that was productive, since the run was created. No sample in the first moment.",
)
RUN_TIME = counter(
    "run_time_seconds_total",
    "run use",
    "Wall time of the run by use: productive, or lost to one cause. It counts since the run was created, also over a "
    "change of the leader. Each step that ends adds the time up to its end.",
    use=TIME_USES,
)
LOST_TIME = counter(
    "lost_seconds_total",
    "run cause",
    "Time from the last progress before a fault to the next step that all ranks complete, by kind of incident, since "
    "this leader began. holdfast_run_time_seconds_total has all losses.",
    cause=RESTART_REASONS,
)
LOST_STEPS = counter("lost_steps_total", "run", "Completed steps that a restart had to repeat.")
PRODUCTIVE_TIME = counter(
    "productive_seconds_total",
    "run",
    "Duration of all steps that were new to the run, since this leader began. Repeated steps do not count. A step "
    "counts as a whole; holdfast_run_time_seconds_total leaves out its waits.",
)

# Checkpoints.

RUN_CHECKPOINT_LAST_SUCCESS = gauge(
    "run_checkpoint_last_success_timestamp_seconds",
    "run",
    "Unix time of the run's newest checkpoint; 0 until this leader sees one committed.",
)
RUN_CHECKPOINT_INTERVAL = gauge(
    "run_checkpoint_interval_seconds",
    "run",
    "Longest time that should pass between two checkpoints, by steps at the newest step's pace or by minutes; 0 when "
    "none are scheduled.",
)
REPLICA_STEP = gauge(
    "replica_step",
    "run",
    "Newest step of which every rank's snapshot is on two nodes. Absent while there is none.",
)

# The leader's own work for the run, and its losses.

LATE_TICKS = counter(
    "coordinator_late_ticks_total",
    "run",
    "Ticks of the leader that took longer than half of its lease, with reading and writing.",
)
EVENTS_MISSED = counter(
    "events_missed_total",
    "run",
    "Events that Redis removed before the leader read them. A gap of unknown length counts as 1.",
)
LAST_TICK = gauge(
    "coordinator_last_tick_timestamp_seconds",
    "run",
    "Unix time at which the leader's last tick ended; 0 before its first. It stops growing while a tick is stuck.",
)

COMMANDS_REFUSED = counter(
    "commands_refused_total", "run", "Commands that agents refused, such as those from an older leader or generation."
)
INCIDENT_LOG_ATTEMPTS = counter(
    "incident_log_attempts_total", "run", "Times that the daemon appended an incident to its log, or tried to."
)
INCIDENT_LOG_FAILURES = counter(
    "incident_log_failures_total", "run", "Times that the daemon could not append an incident to its log."
)
INCIDENT_FOLDER_ATTEMPTS = counter(
    "incident_folder_attempts_total", "run", "Times that the daemon wrote to an incident's folder, or tried to."
)
INCIDENT_FOLDER_FAILURES = counter(
    "incident_folder_failures_total", "run", "Times that the daemon could not write to an incident's folder."
)
RECORDING_DROPPED_TICKS = counter(
    "recording_dropped_turns_total", "run", "Ticks that the recording for `holdfast replay` had no room for."
)
HISTORY_ROWS = counter(
    "history_rows_total", "run", "Steps and checkpoints that the daemon handed to the writer of the run's history."
)
HISTORY_DROPPED = counter(
    "history_dropped_total",
    "run",
    "Steps and checkpoints that the run's history lacks, because the disk was too slow or refused them.",
)
HISTORY_WRITE_ATTEMPTS = counter(
    "history_write_attempts_total",
    "run",
    "Times that the daemon wrote a batch of rows to the run's history, or tried to.",
)
HISTORY_WRITE_FAILURES = counter(
    "history_write_failures_total",
    "run",
    "Times that the daemon could not write a batch to the run's history. It tries the batch again.",
)

# Messages to people.

NOTIFICATIONS = counter(
    "notifications_total",
    "run channel outcome",
    "Messages to people by how they ended. refused: the service does not take it; gave_up: no attempt within an hour "
    "succeeded; dropped: too many waited. The channel heartbeat counts signs of life.",
    outcome=OUTCOMES,
)
NOTIFICATION_ATTEMPTS = counter(
    "notification_attempts_total", "run channel", "Attempts to send a message to people, or a sign of life."
)

FAMILIES = declared_in(globals())

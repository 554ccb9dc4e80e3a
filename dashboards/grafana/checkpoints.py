"""The dashboard of checkpoints and recovery."""

from dashboards.grafana.common import RUN_ANNOTATIONS, RUN_VARIABLE, quantile, quantile_in_range
from dashboards.grafana.model import Dashboard, Panel, Query

PANELS = (
    Panel(
        title="Age of the newest checkpoint",
        description="Progress that the loss of a node would cost now, and the usual time between checkpoints.",
        unit="s",
        queries=(
            Query('time() - max(holdfast_run_checkpoint_last_success_timestamp_seconds{run="$run"} > 0)', "age"),
            Query('max(holdfast_run_checkpoint_interval_seconds{run="$run"})', "usual interval"),
        ),
    ),
    Panel(
        title="Checkpoints",
        description="Checkpoints committed or failed since the run began, and those that failed, sum over agents.",
        unit="none",
        queries=(
            Query('sum(holdfast_checkpoint_attempts_total{run="$run"})', "committed or failed"),
            Query('sum(holdfast_checkpoint_failures_total{run="$run"})', "failed"),
        ),
    ),
    Panel(
        title="Checkpoint size",
        description="Newest checkpoint before and after compression, sum over agents.",
        unit="bytes",
        queries=(Query('sum by (form) (holdfast_checkpoint_bytes{run="$run"})', "{{form}}"),),
    ),
    Panel(
        title="Secondary behind",
        description="Committed checkpoints that the secondary still lacks, and failed copies since the run began.",
        unit="none",
        queries=(
            Query('max(holdfast_checkpoint_secondary_lag_checkpoints{run="$run"})', "checkpoints behind"),
            Query('sum(holdfast_checkpoint_copy_failures_total{run="$run"})', "failed copies"),
        ),
    ),
    Panel(
        title="Checkpoint duration",
        description="Time from the snapshot to the commit of its checkpoint, within the range shown. Training "
        "does not wait for it.",
        unit="s",
        kind="stat",
        queries=(
            Query(quantile_in_range(0.5, "holdfast_checkpoint_duration_seconds"), "median"),
            Query(quantile_in_range(0.99, "holdfast_checkpoint_duration_seconds"), "99th percentile"),
        ),
    ),
    Panel(
        title="Training stalled by snapshots",
        description="Time that a training thread waits for the copy of its state.",
        unit="s",
        queries=(
            Query(quantile(0.5, "holdfast_snapshot_stall_seconds"), "median"),
            Query(quantile(0.99, "holdfast_snapshot_stall_seconds"), "99th percentile"),
        ),
    ),
    Panel(
        title="Snapshots",
        description="Snapshots per second over all ranks: taken, and due but skipped.",
        unit="ops",
        queries=(
            Query('sum(rate(holdfast_snapshots_total{run="$run"}[$__rate_interval]))', "taken"),
            Query('sum(rate(holdfast_snapshots_skipped_total{run="$run"}[$__rate_interval]))', "skipped"),
        ),
    ),
    Panel(
        title="Detection and recovery",
        description="Median time from the last progress to the verdict, and to the next step that all ranks "
        "complete, within the range shown. Empty without incidents.",
        unit="s",
        kind="stat",
        queries=(
            Query(quantile_in_range(0.5, "holdfast_detection_latency_seconds"), "detection"),
            Query(quantile_in_range(0.5, "holdfast_recovery_duration_seconds"), "recovery"),
        ),
    ),
    Panel(
        title="Restarts since the run began",
        description="Restarts by reason, and the steps that they had to repeat.",
        unit="none",
        kind="bars",
        queries=(
            Query('max by (reason) (holdfast_run_restarts_total{run="$run"})', "{{reason}}"),
            Query('max(holdfast_lost_steps_total{run="$run"})', "steps repeated"),
        ),
    ),
    Panel(
        title="Steps",
        description="Newest completed step. It goes back when a restart repeats steps.",
        unit="none",
        queries=(Query('max(holdfast_run_step{run="$run"})', "step"),),
    ),
    Panel(
        title="Time lost to incidents",
        description="Time from the last progress before a fault to the next step that all ranks complete, by kind of "
        "incident.",
        unit="s",
        kind="bars",
        queries=(Query('max by (cause) (holdfast_lost_seconds_total{run="$run"})', "{{cause}}"),),
    ),
    Panel(
        title="Suspicions",
        description="Times that the run seemed to stand still, and how that ended: in a verdict, or in new progress.",
        unit="none",
        queries=(Query('max by (outcome) (holdfast_suspicions_total{run="$run"})', "{{outcome}}"),),
    ),
)

CHECKPOINTS = Dashboard(
    title="Holdfast: checkpoints and recovery",
    uid="holdfast-checkpoints",
    description="What is saved of one run, what a loss would cost now, and how fast the run came back.",
    variables=(RUN_VARIABLE,),
    panels=PANELS,
    annotations=RUN_ANNOTATIONS,
)

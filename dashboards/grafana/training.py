"""The dashboard of a run's numbers. A panel stays empty if the trainer does not report its number."""

from dashboards.grafana.common import RUN_ANNOTATIONS, RUN_VARIABLE, highest
from dashboards.grafana.model import Dashboard, Panel, Query

_BUBBLE = 'max by (rank) (holdfast_rank_pipeline_bubble_ratio{run="$run"})'

PANELS = (
    Panel(
        title="Gradient norm",
        description="Global norm. A rise often comes a few steps before the loss follows.",
        unit="none",
        log_scale=True,
        queries=(Query('max(holdfast_grad_norm{run="$run"})', "gradient norm"),),
    ),
    Panel(
        title="Learning rate",
        description="Learning rate of the newest step.",
        unit="sci",
        queries=(Query('max(holdfast_learning_rate{run="$run"})', "learning rate"),),
    ),
    Panel(
        title="Distance of the loss from its median",
        description="In robust standard deviations of the recent steps. Spikes stay high for several steps.",
        unit="none",
        queries=(Query('max(holdfast_loss_zscore{run="$run"})', "z-score"),),
    ),
    Panel(
        title="Odd losses",
        description="Blips, spikes and missing losses, and reports of NaN or infinity, since the run began.",
        unit="none",
        queries=(
            Query('max by (kind) (holdfast_anomalies_total{run="$run"})', "{{kind}}"),
            Query('max by (quantity) (holdfast_nonfinite_total{run="$run"})', "non-finite {{quantity}}"),
        ),
    ),
    Panel(
        title="Model FLOPs utilisation",
        description="The model's FLOP/s divided by the devices' peak, mean over ranks.",
        unit="percentunit",
        queries=(Query('max(holdfast_mfu_ratio{run="$run"})', "utilisation"),),
    ),
    Panel(
        title="Pipeline bubble",
        description="Share of a step in which a rank's pipeline stage was idle: mean, and the ten highest.",
        unit="percentunit",
        queries=(
            Query('max(holdfast_pipeline_bubble_ratio{run="$run"})', "mean"),
            Query(highest(_BUBBLE), "rank {{rank}}"),
        ),
    ),
    Panel(
        title="Update norm",
        description="Global norm of the parameters' change in a step. 0 in a step that is skipped.",
        unit="none",
        log_scale=True,
        queries=(Query('max(holdfast_update_norm{run="$run"})', "update norm"),),
    ),
    Panel(
        title="Loss scale",
        description="It halves at every overflow and grows while there is none. If it only falls, the run does "
        "not train.",
        unit="none",
        log_scale=True,
        queries=(Query('max(holdfast_loss_scale{run="$run"})', "loss scale"),),
    ),
    Panel(
        title="Skipped steps",
        description="Steps per second that the optimizer skipped, by reason. A few overflows are normal under loss "
        "scaling.",
        unit="ops",
        queries=(
            Query('sum by (reason) (rate(holdfast_skipped_steps_total{run="$run"}[$__rate_interval]))', "{{reason}}"),
        ),
    ),
    Panel(
        title="Duplicate samples",
        description="Steps since the run began that trained on samples of another data-parallel rank or of an "
        "earlier step. It should stay 0.",
        unit="none",
        queries=(Query('max(holdfast_duplicate_steps_total{run="$run"})', "steps"),),
    ),
    Panel(
        title="Balance loss",
        description="Load-balance loss of the experts' router, mean over ranks.",
        unit="none",
        decimals=4,
        queries=(Query('max(holdfast_balance_loss{run="$run"})', "balance loss"),),
    ),
    Panel(
        title="Dropped tokens",
        description="Tokens per second that experts dropped for lack of capacity, sum over ranks.",
        unit="short",
        queries=(Query('sum(rate(holdfast_dropped_tokens_total{run="$run"}[$__rate_interval]))', "tokens/s"),),
    ),
)

TRAINING = Dashboard(
    title="Holdfast: training",
    uid="holdfast-training",
    description="The numbers that the trainer of one run reports: norms, learning rate, odd losses, utilisation.",
    variables=(RUN_VARIABLE,),
    panels=PANELS,
    annotations=RUN_ANNOTATIONS,
)

"""Row: how well the run trains. A panel stays empty if the trainer does not report its number."""

from dashboards.grafana.model import Panel, Query, Row

_BUBBLE = 'max by (rank) (holdfast_rank_pipeline_bubble_ratio{run="$run"})'

ROW = Row(
    title="Training",
    panels=(
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
                Query(f"topk(10, {_BUBBLE})", "rank {{rank}}"),
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
                Query(
                    'sum by (reason) (rate(holdfast_skipped_steps_total{run="$run"}[$__rate_interval]))', "{{reason}}"
                ),
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
    ),
)

"""Row: progress and throughput."""

from dashboards.grafana.model import Panel, Query, Row


def _step_duration(quantile: float) -> str:
    rate = 'sum by (le) (rate(holdfast_step_duration_seconds_bucket{run="$run"}[$__rate_interval]))'
    return f"histogram_quantile({quantile}, {rate})"


ROW = Row(
    title="Progress and throughput",
    panels=(
        Panel(
            title="Loss",
            description="Training loss, mean over ranks, and the newest validation loss.",
            unit="none",
            decimals=4,
            queries=(
                Query('max(holdfast_loss{run="$run"})', "training"),
                Query('max(holdfast_validation_loss{run="$run"})', "validation"),
            ),
        ),
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
            title="Throughput",
            description="Tokens per second, sum over all ranks.",
            unit="short",
            queries=(Query('sum(rate(holdfast_tokens_total{run="$run"}[$__rate_interval]))', "tokens/s"),),
        ),
        Panel(
            title="Step duration",
            description="Duration of a step over all ranks. A tail far above the median is a straggler.",
            unit="s",
            queries=(
                Query(_step_duration(0.5), "median"),
                Query(_step_duration(0.99), "99th percentile"),
            ),
        ),
        Panel(
            title="Steps",
            description="Newest completed step. It goes back when a restart repeats steps.",
            unit="none",
            queries=(Query('max(holdfast_run_step{run="$run"})', "step"),),
        ),
        Panel(
            title="Where the time goes",
            description="Share of all ranks' time in each phase.",
            unit="percentunit",
            queries=(
                Query(
                    'sum by (phase) (rate(holdfast_rank_phase_seconds_total{run="$run"}[$__rate_interval]))'
                    ' / scalar(sum(rate(holdfast_rank_phase_seconds_total{run="$run"}[$__rate_interval])))',
                    "{{phase}}",
                ),
            ),
        ),
    ),
)

"""The dashboard of one run: whether it is healthy, and how fast it is."""

from dashboards.grafana.common import RUN_ANNOTATIONS, RUN_VARIABLE, quantile
from dashboards.grafana.model import Dashboard, Panel, Query


def _small(
    title: str,
    description: str,
    query: Query,
    unit: str = "none",
    *,
    decimals: int | None = None,
    show_names: bool = False,
) -> Panel:
    """Return one of the numbers at the top."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        kind="stat",
        width=4,
        height=4,
        decimals=decimals,
        show_names=show_names,
        queries=(query,),
    )


PANELS = (
    _small(
        "State",
        "Current state of the run.",
        Query('max by (state) (holdfast_run_state{run="$run"}) == 1', "{{state}}"),
        show_names=True,
    ),
    _small(
        "Step",
        "Newest step that all ranks have completed; -1 before the first.",
        Query('max(holdfast_run_step{run="$run"})', "step"),
    ),
    _small(
        "Goodput",
        "Share of the run's wall time that was productive, since the run was created.",
        Query('max(holdfast_goodput_ratio{run="$run"})', "goodput"),
        "percentunit",
        decimals=2,
    ),
    _small(
        "Firing alerts",
        "Alerts of this run that fire now, without the watchdog, which always fires.",
        Query('count(ALERTS{run="$run", alertstate="firing", severity!="none"}) or vector(0)', "alerts"),
    ),
    _small(
        "Open incidents",
        "Incidents that the run has not recovered from yet.",
        Query('sum(max by (kind) (holdfast_incident_open{run="$run"}))', "open"),
    ),
    _small(
        "How the run is watched",
        "Mode: observe reports, act also restarts. Preset: how patient the daemon is.",
        Query('max by (mode, preset) (holdfast_run_info{run="$run"})', "{{mode}}, {{preset}}"),
        show_names=True,
    ),
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
        title="Throughput",
        description="Tokens per second, sum over all ranks.",
        unit="short",
        queries=(Query('sum(rate(holdfast_tokens_total{run="$run"}[$__rate_interval]))', "tokens/s"),),
    ),
    Panel(
        title="Ranks by state",
        description="Ranks that are starting, running, stalled or exited, and the size of the world. A stalled "
        "rank is also running.",
        unit="none",
        queries=(
            Query('max by (state) (holdfast_ranks{run="$run"})', "{{state}}"),
            Query('max(holdfast_run_world_size{run="$run"})', "world size"),
        ),
    ),
    Panel(
        title="Step duration",
        description="Duration of a step over all ranks. A tail far above the median is a straggler.",
        unit="s",
        queries=(
            Query(quantile(0.5, "holdfast_step_duration_seconds"), "median"),
            Query(quantile(0.99, "holdfast_step_duration_seconds"), "99th percentile"),
        ),
    ),
    Panel(
        title="Numbers that the script logs",
        description="The newest number of each name that the script or its framework logs. Hide those of another size.",
        unit="none",
        queries=(Query('max by (name) (holdfast_logged_number{run="$run"})', "{{name}}"),),
    ),
    Panel(
        title="What the time was used for",
        description="Wall time since the run was created. All but productive is lost. A step counts when it ends.",
        unit="s",
        kind="bars",
        queries=(Query('max by (use) (holdfast_run_time_seconds_total{run="$run"})', "{{use}}"),),
    ),
    Panel(
        title="Incidents since the run began",
        description="Incidents by kind. The record of an incident names its culprit and keeps its evidence.",
        unit="none",
        kind="bars",
        queries=(Query('max by (kind) (holdfast_incidents_total{run="$run"})', "{{kind}}"),),
    ),
)

ONE_RUN = Dashboard(
    title="Holdfast: one run",
    uid="holdfast-run",
    description="One training run: whether it is healthy, how fast it is, and where its time goes.",
    variables=(RUN_VARIABLE,),
    panels=PANELS,
    annotations=RUN_ANNOTATIONS,
)

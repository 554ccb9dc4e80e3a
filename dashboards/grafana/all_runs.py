"""The dashboard of all runs: a row for each, and which of them needs attention."""

from dashboards.grafana.common import RUN_OF_CELL, RUN_OF_SERIES
from dashboards.grafana.model import Annotation, Dashboard, Panel, Query

_FIRING = 'ALERTS{alertname=~"Holdfast.*", alertstate="firing", severity!="none"}'
_EVERY_RUN = "max by (run) (holdfast_run_step)"

PANELS = (
    Panel(
        title="Runs",
        description="One row for each run, those with open incidents or firing alerts first. A click on the name "
        "opens the run. A run that no daemon leads has no row.",
        unit="none",
        kind="table",
        width=24,
        height=9,
        sort_columns=("Open incidents", "Firing alerts"),
        column_links={"run": RUN_OF_CELL},
        queries=(
            Query("max by (run, state) (holdfast_run_state == 1)", "in state", hidden=True),
            Query("max by (run) (holdfast_run_step)", "Step"),
            Query("max by (run) (holdfast_goodput_ratio)", "Goodput", "percentunit"),
            Query("max by (run) (holdfast_loss)", "Loss"),
            Query("sum by (run) (max by (run, kind) (holdfast_incident_open))", "Open incidents"),
            Query(f"count by (run) ({_FIRING}) or 0 * {_EVERY_RUN}", "Firing alerts"),
            Query("sum by (run) (max by (run, reason) (holdfast_run_restarts_total))", "Restarts"),
            Query("run:checkpoint_age:seconds", "Checkpoint age", "s"),
            Query("max by (run) (holdfast_run_world_size)", "Ranks"),
        ),
    ),
    Panel(
        title="Alerts that fire now",
        description="Firing alerts of all runs. The runbook says what to do about each.",
        unit="none",
        kind="table",
        column_links={"run": RUN_OF_CELL},
        queries=(Query(f"count by (run, alertname, severity) ({_FIRING})", "Series"),),
    ),
    Panel(
        title="Incidents since each run began",
        description="Incidents by run and kind.",
        unit="none",
        kind="bars",
        links=(RUN_OF_SERIES,),
        queries=(Query("max by (run, kind) (holdfast_incidents_total) > 0", "{{run}} {{kind}}"),),
    ),
    Panel(
        title="Stalled ranks",
        description="Ranks that have made no progress for more than a second, by run.",
        unit="none",
        links=(RUN_OF_SERIES,),
        queries=(Query('max by (run) (holdfast_ranks{state="stalled"})', "{{run}}"),),
    ),
    Panel(
        title="Goodput",
        description="Share of the last five minutes that moved the run forward.",
        unit="percentunit",
        links=(RUN_OF_SERIES,),
        queries=(Query("run:productive_time:ratio_rate5m", "{{run}}"),),
    ),
    Panel(
        title="Throughput",
        description="Tokens per second, sum over the ranks of each run.",
        unit="short",
        links=(RUN_OF_SERIES,),
        queries=(Query("sum by (run) (rate(holdfast_tokens_total[$__rate_interval]))", "{{run}}"),),
    ),
    Panel(
        title="Loss",
        description="Training loss of each run, mean over its ranks.",
        unit="none",
        decimals=4,
        links=(RUN_OF_SERIES,),
        queries=(Query("max by (run) (holdfast_loss)", "{{run}}"),),
    ),
    Panel(
        title="Age of the newest checkpoint",
        description="Progress that the loss of a node would cost each run now.",
        unit="s",
        links=(RUN_OF_SERIES,),
        queries=(Query("run:checkpoint_age:seconds", "{{run}}"),),
    ),
    Panel(
        title="Restarts",
        description="Restarts since each run began.",
        unit="none",
        links=(RUN_OF_SERIES,),
        queries=(Query("sum by (run) (max by (run, reason) (holdfast_run_restarts_total))", "{{run}}"),),
    ),
    Panel(
        title="Runs without a leader",
        description="1 if no daemon leads the run, so that nobody judges it; else 0.",
        unit="none",
        links=(RUN_OF_SERIES,),
        queries=(Query("max by (run) (holdfast_coordinator_leader) == bool 0", "{{run}}"),),
    ),
)

ALL_RUNS = Dashboard(
    title="Holdfast: all runs",
    uid="holdfast-runs",
    description="All training runs that this Prometheus knows, and which of them needs attention.",
    variables=(),
    panels=PANELS,
    annotations=(Annotation(name="Alerts", expr=_FIRING, title="{{run}}: {{alertname}}", color="red"),),
)

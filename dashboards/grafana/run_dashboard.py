"""The dashboard of one run."""

from dashboards.grafana import checkpoints, health, progress, ranks, sidecar, training
from dashboards.grafana.model import Annotation, Dashboard

RUN_DASHBOARD = Dashboard(
    title="Holdfast run",
    uid="holdfast-run",
    description="One training run: whether it is healthy, how fast it is, which rank is odd, what is saved.",
    run_query="label_values(holdfast_run_info, run)",
    rows=(health.ROW, progress.ROW, training.ROW, ranks.ROW, checkpoints.ROW, sidecar.ROW),
    annotations=(
        Annotation(
            name="Alerts",
            expr='ALERTS{run="$run", alertstate="firing", severity!="none"}',
            title="{{alertname}}",
            color="red",
        ),
        Annotation(
            name="Restarts",
            expr='changes(holdfast_run_generation{run="$run"}[$__rate_interval]) > 0',
            title="Restart",
            color="orange",
        ),
    ),
)

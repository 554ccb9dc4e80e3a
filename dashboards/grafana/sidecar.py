"""The dashboard of Holdfast itself.

A daemon that watches several runs exports series without a run label; the dashboard shows them with every run.
"""

from dashboards.grafana.common import RANK_OF_SERIES, RUN_ANNOTATIONS, RUN_VARIABLE, highest, quantile
from dashboards.grafana.model import Dashboard, Panel, Query


def _rate(metric: str, by: str) -> str:
    return f'sum by ({by}) (rate({metric}{{run=~"$run|"}}[$__rate_interval]))'


PANELS = (
    Panel(
        title="Agents and daemons",
        description="1 if the agent or daemon answers when Prometheus scrapes it, else 0.",
        unit="none",
        queries=(Query('up{component=~"agent|daemon", run=~"$run|"}', "{{component}} {{instance}}"),),
    ),
    Panel(
        title="Leader",
        description="1 for the daemon that leads the run. Exactly one should lead.",
        unit="none",
        queries=(Query('holdfast_coordinator_leader{run="$run"}', "{{instance}}"),),
    ),
    Panel(
        title="Ticks",
        description="Duration of a tick of the leader's loop, 99th percentile.",
        unit="s",
        queries=(
            Query(quantile(0.99, "holdfast_coordinator_tick_duration_seconds", 'run=~"$run|"'), "99th percentile"),
        ),
    ),
    Panel(
        title="Slow ticks",
        description="Ticks per second that took longer than the time between two ticks. Late: than half of the lease.",
        unit="ops",
        queries=(
            Query(_rate("holdfast_coordinator_slow_ticks_total", "instance"), "{{instance}}"),
            Query(_rate("holdfast_coordinator_late_ticks_total", "instance"), "late on {{instance}}"),
        ),
    ),
    Panel(
        title="Time since the last tick",
        description="Time since the leader of the run last ended a tick. If it grows, a tick takes long or is stuck.",
        unit="s",
        queries=(
            Query(
                'time() - max by (run) (holdfast_coordinator_last_tick_timestamp_seconds{run="$run"})',
                "since the last tick",
            ),
        ),
    ),
    Panel(
        title="Redis reachable",
        description="1 if Redis answers the agent or daemon, else 0. Training continues without Redis.",
        unit="none",
        queries=(Query('holdfast_store_up{run=~"$run|"}', "{{component}} {{instance}}"),),
    ),
    Panel(
        title="Redis calls",
        description="Calls per second, and those that failed.",
        unit="ops",
        queries=(
            Query(_rate("holdfast_store_operations_total", "component"), "{{component}}"),
            Query(_rate("holdfast_store_failures_total", "component"), "{{component}} failed"),
        ),
    ),
    Panel(
        title="Reports and losses",
        description="Reports from ranks per second, and records dropped because a buffer was full.",
        unit="ops",
        queries=(
            Query('sum(rate(holdfast_reports_total{run="$run"}[$__rate_interval]))', "reports"),
            Query(_rate("holdfast_events_dropped_total", "component"), "dropped by {{component}}"),
        ),
    ),
    Panel(
        title="Hooks' CPU time",
        links=(RANK_OF_SERIES,),
        description="CPU cores that a rank's reporter thread uses: the ten highest.",
        unit="percentunit",
        queries=(Query(highest(_rate("holdfast_hook_reporter_cpu_seconds_total", "rank")), "rank {{rank}}"),),
    ),
    Panel(
        title="Versions",
        description="Processes of each version. After an update there should be one version.",
        unit="none",
        kind="bars",
        queries=(
            Query('count by (component, version) (holdfast_build_info{run=~"$run|"})', "{{component}} {{version}}"),
        ),
    ),
    Panel(
        title="Nodes",
        description="Nodes whose agents answer.",
        unit="none",
        kind="stat",
        queries=(Query('count(count by (node) (holdfast_node_info{run="$run"}))', "nodes"),),
    ),
    Panel(
        title="Detectors",
        description="Share of a core that each detector takes: the ten highest. And calls per second that failed.",
        unit="none",
        queries=(
            Query(highest(_rate("holdfast_detector_seconds_total", "detector")), "{{detector}}"),
            Query(f"sum({_rate('holdfast_detector_failures_total', 'detector')})", "failed calls/s"),
        ),
    ),
    Panel(
        title="Refused messages",
        description="Messages that the daemon or an agent refused since it started, by source. It should stay 0.",
        unit="none",
        queries=(
            Query('sum by (source) (holdfast_messages_refused_total{run="$run"})', "daemon: {{source}}"),
            Query('sum by (source) (holdfast_agent_refused_total{run="$run"})', "agents: {{source}}"),
        ),
    ),
)

SIDECAR = Dashboard(
    title="Holdfast itself",
    uid="holdfast-itself",
    description="The agents and daemons of one run: whether they answer, what they cost, what they refused.",
    variables=(RUN_VARIABLE,),
    panels=PANELS,
    annotations=RUN_ANNOTATIONS,
)

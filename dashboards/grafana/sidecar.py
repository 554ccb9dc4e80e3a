"""Row: the sidecar itself.

A daemon that watches several runs exports series without a run label; every run's dashboard shows them.
"""

from dashboards.grafana.model import Panel, Query, Row


def _quantile(quantile: float, metric: str, by: str = "") -> str:
    labels = ", ".join(filter(None, ("le", by)))
    rate = f'sum by ({labels}) (rate({metric}_bucket{{run=~"$run|"}}[$__rate_interval]))'
    return f"histogram_quantile({quantile}, {rate})"


def _rate(metric: str, by: str) -> str:
    return f'sum by ({by}) (rate({metric}{{run=~"$run|"}}[$__rate_interval]))'


ROW = Row(
    title="The sidecar itself",
    panels=(
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
            queries=(Query(_quantile(0.99, "holdfast_coordinator_tick_duration_seconds"), "99th percentile"),),
        ),
        Panel(
            title="Slow ticks",
            description="Ticks per second that took longer than the time between two ticks.",
            unit="ops",
            queries=(Query(_rate("holdfast_coordinator_slow_ticks_total", "instance"), "{{instance}}"),),
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
            description="CPU cores that a rank's reporter thread uses: the ten highest.",
            unit="percentunit",
            queries=(Query(f"topk(10, {_rate('holdfast_hook_reporter_cpu_seconds_total', 'rank')})", "rank {{rank}}"),),
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
    ),
)

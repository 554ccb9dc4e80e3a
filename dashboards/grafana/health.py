"""Row: is the run healthy?"""

from dashboards.grafana.model import Panel, Query, Row

_PRODUCTIVE = 'sum(increase(holdfast_productive_seconds_total{run="$run"}[$__range]))'
_LOST = '(sum(increase(holdfast_lost_seconds_total{run="$run"}[$__range])) or vector(0))'

ROW = Row(
    title="Is the run healthy?",
    panels=(
        Panel(
            title="State",
            description="Current state of the run.",
            unit="none",
            kind="stat",
            width=4,
            height=4,
            show_names=True,
            queries=(Query('max by (state) (holdfast_run_state{run="$run"}) == 1', "{{state}}"),),
        ),
        Panel(
            title="Step",
            description="Newest step that all ranks have completed; -1 before the first.",
            unit="none",
            kind="stat",
            width=4,
            height=4,
            queries=(Query('max(holdfast_run_step{run="$run"})', "step"),),
        ),
        Panel(
            title="Productive share",
            description="Goodput: time with new progress as a share of all time, within the range shown.",
            unit="percentunit",
            kind="stat",
            width=4,
            height=4,
            decimals=2,
            queries=(Query(f"{_PRODUCTIVE} / ({_PRODUCTIVE} + {_LOST})", "productive"),),
        ),
        Panel(
            title="Firing alerts",
            description="Alerts of this run that fire now, without the watchdog, which always fires.",
            unit="none",
            kind="stat",
            width=4,
            height=4,
            queries=(Query('count(ALERTS{run="$run", alertstate="firing", severity!="none"}) or vector(0)', "alerts"),),
        ),
        Panel(
            title="Open incidents",
            description="Incidents that the run has not recovered from yet.",
            unit="none",
            kind="stat",
            width=4,
            height=4,
            queries=(Query('sum(max by (kind) (holdfast_incident_open{run="$run"}))', "open"),),
        ),
        Panel(
            title="Generation",
            description="Incarnation of the run's world; every restart adds one.",
            unit="none",
            kind="stat",
            width=4,
            height=4,
            queries=(Query('max(holdfast_run_generation{run="$run"})', "generation"),),
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
            title="Incidents since the run began",
            description="Incidents by kind. The record of an incident names its culprit and keeps its evidence.",
            unit="none",
            kind="bars",
            queries=(Query('max by (kind) (holdfast_incidents_total{run="$run"})', "{{kind}}"),),
        ),
        Panel(
            title="How the run is watched",
            description="Mode: observe reports, act also restarts. Preset: how patient the daemon is.",
            unit="none",
            kind="stat",
            show_names=True,
            queries=(
                Query('max by (mode, preset) (holdfast_run_info{run="$run"})', "mode {{mode}}, preset {{preset}}"),
            ),
        ),
    ),
)

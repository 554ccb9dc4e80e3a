"""Row: is the run healthy?"""

from dashboards.grafana.model import Panel, Query, Row

_PRODUCTIVE = 'sum(increase(holdfast_productive_seconds_total{run="$run"}[$__range]))'
_LOST = '(sum(increase(holdfast_lost_seconds_total{run="$run"}[$__range])) or vector(0))'

ROW = Row(
    title="Is the run healthy?",
    panels=(
        Panel(
            title="State",
            description="What the run is doing now.",
            unit="none",
            kind="stat",
            width=4,
            height=4,
            show_names=True,
            queries=(Query('max by (state) (holdfast_run_state{run="$run"}) == 1', "{{state}}"),),
        ),
        Panel(
            title="Step",
            description="Newest step that the run has completed; -1 before the first.",
            unit="none",
            kind="stat",
            width=4,
            height=4,
            queries=(Query('max(holdfast_run_step{run="$run"})', "step"),),
        ),
        Panel(
            title="Productive share",
            description="Time with new progress, as a share of all time, within the range shown.",
            unit="percentunit",
            kind="stat",
            width=4,
            height=4,
            decimals=2,
            queries=(Query(f"{_PRODUCTIVE} / ({_PRODUCTIVE} + {_LOST})", "productive"),),
        ),
        Panel(
            title="Firing alerts",
            description="Alerts of this run that fire now; the watchdog, which always fires, is left out.",
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
            description="How many ranks start, run, stand still or have exited, and how many there should be.",
            unit="none",
            queries=(
                Query('max by (state) (holdfast_ranks{run="$run"})', "{{state}}"),
                Query('max(holdfast_run_world_size{run="$run"})', "world size"),
            ),
        ),
        Panel(
            title="Incidents since the run began",
            description="By kind. The record of an incident names its culprit and keeps its evidence.",
            unit="none",
            kind="bars",
            queries=(Query('max by (kind) (holdfast_incidents_total{run="$run"})', "{{kind}}"),),
        ),
        Panel(
            title="How the run is watched",
            description="Mode: how far the daemon may go by itself. Preset: how patient it is.",
            unit="none",
            kind="stat",
            show_names=True,
            queries=(
                Query('max by (mode, preset) (holdfast_run_info{run="$run"})', "mode {{mode}}, preset {{preset}}"),
            ),
        ),
    ),
)

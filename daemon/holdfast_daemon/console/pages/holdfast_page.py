"""The daemon itself: its store, ticks and detectors, what it has refused, and the agents that it hears of."""

from importlib.metadata import version
from typing import Any

from holdfast_daemon.console.watched import WatchedDaemon


def holdfast_page(watched: WatchedDaemon, pages_open: int) -> dict[str, Any]:
    """Return how the daemon and the agents are."""
    runs = dict(watched.runs)
    refused: dict[str, int] = {}
    for run in runs.values():
        for source, count in run.refusals.counts.items():
            refused[source] = refused.get(source, 0) + count
    agents = [
        {"node": name, "run": run_name, "reported_unix_s": node.reported_unix_s}
        for run_name, run in sorted(runs.items())
        if run.state is not None
        for name, node in sorted({**run.state.heard_of, **run.state.nodes}.items())
    ]
    return {
        "version": version("holdfast-torch"),
        "daemon": watched.options.name,
        "uptime_s": round(watched.clock.now() - watched.started_unix_s, 1),
        "leader_of": sorted(name for name, run in runs.items() if run.leads),
        "store": {
            "up": all(run.store_up for run in runs.values()),
            "operations": sum(run.counters.operations for run in runs.values()),
            "failures": sum(run.counters.failures for run in runs.values()),
        },
        "ticks": watched.ticks.tick_summary(),
        "detectors": watched.ticks.detector_summary(),
        "refused": {source: count for source, count in refused.items() if count},
        "pages_open": pages_open,
        "agents": agents,
    }

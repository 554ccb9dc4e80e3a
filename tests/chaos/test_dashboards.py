"""A real Prometheus scrapes a real run: every panel has data, and the alert on a dead rank fires."""

import json
import os
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.catalogue import differences
from dashboards.queries import panel_queries
from holdfast_cli.control import rank_pids
from holdfast_cli.local_run.local_run import LocalRun
from tests.chaos.conftest import PATIENCE_S, Runs, until, until_step
from tests.support.prometheus_server import Target, needs_prometheus, prometheus_server

pytestmark = pytest.mark.system

NOT_REPORTED = {"Model FLOPs utilisation", "Pipeline bubble", "Update norm", "Loss scale", "Balance loss"}
"""Panels of numbers that the run's trainer does not report."""

DASHBOARD = Path(__file__).resolve().parents[2] / "dashboards" / "grafana" / "holdfast-run.json"


def targets_of(local: LocalRun) -> list[Target]:
    """Return the targets that `holdfast run` has written for Prometheus."""
    groups = json.loads(local.paths.targets.read_text())
    return [Target(group["targets"][0], group["labels"]["component"], group["labels"]["run"]) for group in groups]


def scrape(target: Target) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://{target.address}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


@needs_prometheus
def test_every_panel_has_data_of_a_run_that_lost_a_rank(runs: Runs, tmp_path: Path) -> None:
    with runs.run("dashboards", hurry=True, steps=100_000, checkpoint_every=5) as local:
        until_step(local, 8)
        targets = targets_of(local)
        with prometheus_server(tmp_path, targets) as prometheus:
            assert prometheus.queries_without_data([("scraped", 'up{component="daemon"} == 1')]) == []
            os.kill(rank_pids(local.status())[3], signal.SIGKILL)
            until(local, lambda status: status.restarts == 1 and status.newest_step > 40)
            dashboard = json.loads(DASHBOARD.read_text())
            queries = [
                query
                for query in panel_queries(dashboard, run="dashboards", rate_interval="10s")
                if query[0] not in NOT_REPORTED
            ]
            # The z-score of the loss and the validation loss need some steps: see the run's configuration.
            assert prometheus.queries_without_data(queries, deadline_s=PATIENCE_S) == []
            fired = [("dead rank", 'ALERTS{alertname="HoldfastRankDead",run="dashboards"}')]
            assert prometheus.queries_without_data(fired, deadline_s=PATIENCE_S) == []
        for target in targets:
            text = scrape(target)
            assert list(text_string_to_metric_families(text))
            assert differences("agent" if target.component == "agent" else "daemon", text) == []

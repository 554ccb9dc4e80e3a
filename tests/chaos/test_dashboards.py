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

WITHOUT_DATA = {
    "Model FLOPs utilisation": "the peak of a CPU is not known",
    "Pipeline bubble": "there is no pipeline",
    "Loss scale": "only fp16 needs one",
    "Balance loss": "the model has no experts",
}
"""Panels without data, and why."""

PHASES = ("init", "data", "forward_backward", "optimizer", "eval")
"""Phases in which the trainer spends time."""

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
def test_every_panel_has_data_of_a_run_that_lost_a_rank_or_is_known_to_have_none(runs: Runs, tmp_path: Path) -> None:
    settings = {"ranks": 2, "flags": ("--parallel.pp=1",), "steps": 100_000, "checkpoint_every": 5}
    with runs.run("dashboards", hurry=True, **settings) as local:
        until_step(local, 8)
        targets = targets_of(local)
        with prometheus_server(tmp_path, targets) as prometheus:
            assert prometheus.queries_without_data([("scraped", 'up{component="daemon"} == 1')]) == []
            os.kill(rank_pids(local.status())[1], signal.SIGKILL)
            until(local, lambda status: status.restarts == 1 and status.newest_step > 40)
            dashboard = json.loads(DASHBOARD.read_text())
            queries = panel_queries(dashboard, run="dashboards", rate_interval="10s")
            known = [query for query in queries if query[0] not in WITHOUT_DATA]
            # The z-score of the loss and the validation loss need some steps: see the run's configuration.
            assert prometheus.queries_without_data(known, deadline_s=PATIENCE_S) == []
            fired = [("dead rank", 'ALERTS{alertname="HoldfastRankDead",run="dashboards"}')]
            assert prometheus.queries_without_data(fired, deadline_s=PATIENCE_S) == []
            # The ranks of the new generation count anew.
            spent = [(each, f'holdfast_rank_phase_seconds_total{{rank="1",phase="{each}"}} > 0') for each in PHASES]
            assert prometheus.queries_without_data(spent, deadline_s=PATIENCE_S) == []
            others = [query for query in queries if query[0] in WITHOUT_DATA]
            assert {title for title, expression in others if not prometheus.query(expression)} == set(WITHOUT_DATA)
        for target in targets:
            text = scrape(target)
            assert list(text_string_to_metric_families(text))
            assert differences("agent" if target.component == "agent" else "daemon", text) == []
            assert '=""' not in text

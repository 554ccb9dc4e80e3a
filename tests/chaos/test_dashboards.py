"""A real Prometheus finds and scrapes a real run: every panel has data, and the alerts on its faults fire."""

import json
import os
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboards.catalogue import differences
from dashboards.queries import annotation_queries, panel_queries
from holdfast_cli.control import rank_pids
from holdfast_cli.fault_injection import request_fault
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_hooks.faults import Fault
from holdfast_proto.v1.store_pb2 import RUN_PHASE_RUNNING
from tests.chaos.conftest import PATIENCE_S, Runs, until, until_step
from tests.support.hardware_exporter import hardware_exporter
from tests.support.prometheus_server import Target, needs_prometheus, prometheus_server

pytestmark = pytest.mark.system

NO_GPU = "there is no GPU; tests/dashboards proves it with stand-ins for the exporters"
WITHOUT_DATA = {
    ("holdfast-nodes", "GPUs"): NO_GPU,
    ("holdfast-nodes", "GPUs slowed down"): NO_GPU,
    ("holdfast-nodes", "Errors of GPUs"): NO_GPU,
    ("holdfast-nodes", "Drivers"): NO_GPU,
    ("holdfast-nodes", "GPU utilisation"): NO_GPU,
    ("holdfast-nodes", "Tensor cores busy"): NO_GPU,
    ("holdfast-nodes", "GPU temperature by rank"): NO_GPU,
}
"""Dashboard and panel without data, and why. None of the panel's queries has data."""
EVERYTHING = (
    "--parallel.dp=1",
    "--parallel.pp=2",
    "--precision.compute=fp16",
    "--model.experts=2",
    "--model.experts_per_token=1",
)
"""Flags of a run that reports all that the trainer can: two stages of a pipeline have a bubble, fp16 has a loss scale,
and experts have a balance loss."""

ALERTS = ("HoldfastRankDead", "HoldfastRunHung")
PHASES = ("init", "data", "forward_backward", "optimizer", "eval")
"""Phases in which the trainer spends time."""

JSON_FOLDER = Path(__file__).resolve().parents[2] / "dashboards" / "grafana" / "json"
NODE = "local"
"""Name that a run on one machine gives to its node."""


def targets_of(local: LocalRun) -> list[Target]:
    """Return the targets that `holdfast run` has written for Prometheus."""
    groups = json.loads(local.paths.targets.read_text())
    return [Target(group["targets"][0], group["labels"]["component"], group["labels"]["run"]) for group in groups]


def scrape(target: Target) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://{target.address}/metrics", timeout=10) as response:
        text: str = response.read().decode()
    return text


def panels_of(run: str) -> dict[tuple[str, str], list[str]]:
    """Return dashboard and panel -> its queries, of the whole set."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(JSON_FOLDER.glob("*.json")):
        for title, expression in panel_queries(json.loads(path.read_text()), run=run, rate_interval="10s"):
            found.setdefault((path.stem, title), []).append(expression)
    return found


@needs_prometheus
def test_every_panel_has_data_of_a_run_that_lost_a_rank_and_hung_or_is_known_to_have_none(
    runs: Runs, tmp_path: Path
) -> None:
    # The peak of a CPU is not known, so the trainer has no utilisation to report: it is made up, as is a logged number.
    odd = {**runs.options("dashboards").environment, "PACED_ODD": "utilisation@0-100000 logs@0-100000"}
    settings = {"ranks": 2, "flags": EVERYTHING, "steps": 100_000, "checkpoint_every": 5, "environment": odd}
    with (
        hardware_exporter(NODE, "GPU-of-nobody") as hardware,
        prometheus_server(tmp_path, [Target(hardware, component="", run="")], runs=runs.folder) as prometheus,
    ):
        with runs.run("dashboards", hurry=True, faults_allowed=True, **settings) as local:
            until_step(local, 8)
            targets = targets_of(local)
            scraped = [(each.component, f'up{{component="{each.component}"}} == 1') for each in targets]
            assert prometheus.queries_without_data(scraped) == []
            os.kill(rank_pids(local.status())[1], signal.SIGKILL)
            until(local, lambda status: status.restarts == 1)
            restart = annotation_queries(
                json.loads((JSON_FOLDER / "holdfast-run.json").read_text()), run="dashboards", rate_interval="10s"
            )
            assert prometheus.queries_without_data(restart, deadline_s=PATIENCE_S) == []
            until(local, lambda status: status.phase == RUN_PHASE_RUNNING and status.newest_step > 20)
            request_fault(local.control, Fault("stop", rank=1))
            until(local, lambda status: status.restarts == 2 and status.newest_step > 40)
            panels = panels_of("dashboards")
            known = [
                (" ".join(panel), expression)
                for panel, expressions in panels.items()
                for expression in expressions
                if panel not in WITHOUT_DATA
            ]
            # The z-score of the loss and the validation loss need some steps: see the run's configuration.
            assert prometheus.queries_without_data(known, deadline_s=PATIENCE_S) == []
            fired = [(name, f'ALERTS{{alertname="{name}",run="dashboards"}}') for name in ALERTS]
            assert prometheus.queries_without_data(fired, deadline_s=PATIENCE_S) == []
            # The ranks of the new generation count anew.
            spent = [(each, f'holdfast_rank_phase_seconds_total{{rank="1",phase="{each}"}} > 0') for each in PHASES]
            assert prometheus.queries_without_data(spent, deadline_s=PATIENCE_S) == []
            assert WITHOUT_DATA.keys() <= panels.keys()
            superfluous = {panel for panel in WITHOUT_DATA if any(map(prometheus.query, panels[panel]))}
            assert superfluous == set()
            for target in targets:
                text = scrape(target)
                assert list(text_string_to_metric_families(text))
                assert differences("agent" if target.component == "agent" else "daemon", text) == []
                assert '=""' not in text
        # The file of targets has gone, so that nobody takes the ended run for a dead one.
        gone = [("gone", 'absent(up{run="dashboards"})')]
        assert prometheus.queries_without_data(gone, deadline_s=PATIENCE_S) == []

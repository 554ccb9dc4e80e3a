"""What the configuration for Kubernetes makes of pods. Discovery itself is Prometheus' own, and is not tried here.

Debian's Prometheus is built without it. So a file takes its place, with the labels that it gives to pods.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.catalogue_exporter import catalogue_exporter
from tests.support.prometheus_server import configured_prometheus, needs_prometheus

CONFIG = Path(__file__).resolve().parents[2] / "dashboards/prometheus/prometheus-kubernetes.yml"
POD = "__meta_kubernetes_pod"


def pod(address: str, *, port: str = "hf-metrics", phase: str = "Running", **labels: str) -> dict[str, Any]:
    named = {f"{POD}_label_holdfast_dev_{name}": value for name, value in labels.items()}
    return {"targets": [address], "labels": {f"{POD}_container_port_name": port, f"{POD}_phase": phase, **named}}


@needs_prometheus
def test_ports_of_agents_and_daemons_are_scraped_and_nothing_else(tmp_path: Path) -> None:
    config = yaml.safe_load(CONFIG.read_text())
    assert config["scrape_configs"][0].pop("kubernetes_sd_configs") == [{"role": "pod"}]
    config["scrape_configs"][0]["file_sd_configs"] = [{"files": [str(tmp_path / "pods.json")]}]
    nobody = "127.0.0.1:9"
    with catalogue_exporter("agent") as agent, catalogue_exporter("daemon") as daemon:
        pods = [
            pod(nobody, component="agent", run="a", port="web"),
            pod(nobody, component="agent", run="a", phase="Succeeded"),
            pod(nobody, component="redis", run="a"),
            pod(nobody, run="a"),
            pod(agent, component="agent", run="a"),
            pod(daemon, component="daemon"),
        ]
        (tmp_path / "pods.json").write_text(json.dumps(pods))
        with configured_prometheus(tmp_path, config) as prometheus:
            scraped = [("up", f'up{{component="{component}"}} == 1') for component in ("agent", "daemon")]
            assert prometheus.queries_without_data(scraped) == []
            found = {(each["metric"].get("component"), each["metric"].get("run")) for each in prometheus.query("up")}
            assert found == {("agent", "a"), ("daemon", None)}


@pytest.mark.parametrize("setting", ["global", "rule_files"])
def test_it_agrees_with_the_configuration_for_files(setting: str) -> None:
    other = yaml.safe_load(CONFIG.with_name("prometheus.yml").read_text())
    assert yaml.safe_load(CONFIG.read_text())[setting] == other[setting]

import math
from collections.abc import Iterator
from typing import Any

import pytest

from dashboards.queries import annotation_queries, panel_queries, rule_queries, variable_queries
from tests.support.catalogue_exporter import NODE, RUN, UUID, catalogue_exporter
from tests.support.hardware_exporter import hardware_exporter
from tests.support.prometheus_server import Prometheus, Target, needs_prometheus, prometheus_server

pytestmark = needs_prometheus


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with (
        catalogue_exporter("agent") as agent,
        catalogue_exporter("daemon") as daemon,
        hardware_exporter(NODE, UUID) as hardware,
    ):
        targets = [
            Target(agent, component="agent", run=RUN),
            Target(daemon, component="daemon", run=RUN),
            Target(hardware, component="", run=""),
        ]
        with prometheus_server(tmp_path_factory.mktemp("prometheus"), targets) as server:
            yield server


def test_every_panel_query_returns_a_number(prometheus: Prometheus, dashboard: Any) -> None:
    queries = panel_queries(dashboard, run=RUN, rate_interval="10s")
    assert prometheus.queries_without_data(queries) == []
    for title, expression in queries:
        assert any(math.isfinite(float(sample["value"][1])) for sample in prometheus.query(expression)), title


def test_every_variable_has_values(prometheus: Prometheus, dashboard: Any) -> None:
    assert prometheus.queries_without_data(variable_queries(dashboard, run=RUN)) == []


def test_another_run_has_no_data(prometheus: Prometheus, dashboard: Any) -> None:
    queries = panel_queries(dashboard, run="other", rate_interval="10s")
    about_runs = [(title, expression) for title, expression in queries if '"other' in expression]
    with_data = {title for title, expression in about_runs if prometheus.query(expression)}
    assert with_data == ({"Firing alerts"} if dashboard["uid"] == "holdfast-run" else set())


def test_a_label_that_a_series_shares_with_its_target_keeps_the_series_value(prometheus: Prometheus) -> None:
    dropped = [("dropped", 'holdfast_events_dropped_total{component="hooks"}')]
    assert prometheus.queries_without_data(dropped) == []
    assert prometheus.query('{exported_component!=""}') == []


def test_every_recorded_series_has_data_and_every_alert_can_be_evaluated(prometheus: Prometheus, rules: Any) -> None:
    records = [(name, name) for name, _ in rule_queries(rules) if ":" in name]
    assert prometheus.queries_without_data(records) == []
    for _, expression in rule_queries(rules):
        prometheus.query(expression)


def test_annotations_of_alerts_and_restarts_have_data(prometheus: Prometheus, dashboard: Any) -> None:
    queries = annotation_queries(dashboard, run=RUN, rate_interval="10s")
    assert prometheus.queries_without_data(queries) == []

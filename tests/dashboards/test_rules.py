import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dashboards.catalogue import fixed_values, series_names
from dashboards.links import RUNBOOK_URL
from dashboards.queries import matched_values, metric_names, rule_queries
from tests.support.prometheus_server import needs_prometheus

REPOSITORY = Path(__file__).resolve().parents[2]
ALERTS = {
    "HoldfastRankDead",
    "HoldfastRunHung",
    "HoldfastRestartsGivenUp",
    "HoldfastLateExit",
    "HoldfastLossSpike",
    "HoldfastNonFiniteLoss",
    "HoldfastOverflowLoop",
    "HoldfastDuplicateSamples",
    "HoldfastCheckpointOverdue",
    "HoldfastAgentDown",
    "HoldfastDaemonDown",
    "HoldfastWatchdog",
}


def _alerts(rules: Any) -> list[Any]:
    return [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [
        ("test", "rules", "tests/dashboards/rules_test.yml"),
        ("check", "config", "dashboards/prometheus/prometheus.yml"),
    ],
    ids=["unit tests", "configuration"],
)
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(
        ["promtool", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_unit_tested(rules: Any) -> None:
    tested = re.findall(r"alertname: (\w+)", (REPOSITORY / "tests/dashboards/rules_test.yml").read_text())
    assert {rule["alert"] for rule in _alerts(rules)} == ALERTS == set(tested)


def test_every_alert_says_how_bad_what_why_and_what_to_do(rules: Any) -> None:
    for rule in _alerts(rules):
        assert rule["labels"]["severity"] in {"none", "warning", "critical"}, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, rule["alert"]


def test_every_runbook_url_leads_to_a_section(rules: Any) -> None:
    headings = re.findall(r"^## (.+)$", (REPOSITORY / "docs/runbook.md").read_text(), flags=re.MULTILINE)
    sections = {f"{RUNBOOK_URL}#{heading.lower().replace(' ', '-')}" for heading in headings}
    assert {rule["annotations"]["runbook_url"] for rule in _alerts(rules)} == sections


def test_rules_use_exported_or_recorded_metrics_only(rules: Any) -> None:
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    for name, expression in rule_queries(rules):
        assert metric_names(expression) <= series_names() | recorded, name


def test_rules_select_label_values_that_exist(rules: Any) -> None:
    for name, expression in rule_queries(rules):
        for label, value in matched_values(expression):
            assert value in fixed_values(label), name

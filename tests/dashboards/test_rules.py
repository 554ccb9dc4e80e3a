import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dashboards.catalogue import fixed_values, series_names
from dashboards.links import RUNBOOK_URL
from dashboards.queries import matched_values, metric_names, rule_queries
from holdfast_daemon.metrics.run_families import INCIDENT_KINDS
from tests.support.prometheus_server import needs_prometheus

REPOSITORY = Path(__file__).resolve().parents[2]
UNIT_TESTS = sorted(Path(__file__).parent.glob("*_test.yml"))
ALERTS = {
    "HoldfastRankDead",
    "HoldfastRunHung",
    "HoldfastRestartsGivenUp",
    "HoldfastLateExit",
    "HoldfastLossSpike",
    "HoldfastLossRise",
    "HoldfastLossDivergence",
    "HoldfastNonFiniteLoss",
    "HoldfastOverflowLoop",
    "HoldfastDuplicateSamples",
    "HoldfastNonFiniteNumbers",
    "HoldfastGradientExplosion",
    "HoldfastSilentCorruption",
    "HoldfastBadConfiguration",
    "HoldfastCheckpointFailed",
    "HoldfastSlowData",
    "HoldfastStraggler",
    "HoldfastThroughputDrop",
    "HoldfastMemoryCreep",
    "HoldfastAllocatorRetries",
    "HoldfastCheckpointOverdue",
    "HoldfastGuardBadCheckpoint",
    "HoldfastNodeQuarantined",
    "HoldfastLowGoodput",
    "HoldfastAgentDown",
    "HoldfastDaemonDown",
    "HoldfastForgedValues",
    "HoldfastWatchdog",
}


def _alerts(rules: Any) -> list[Any]:
    return [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [
        *(("test", "rules", str(path)) for path in UNIT_TESTS),
        ("check", "config", "dashboards/prometheus/prometheus.yml"),
    ],
    ids=[*(path.stem for path in UNIT_TESTS), "configuration"],
)
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    result = subprocess.run(["promtool", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_is_unit_tested(rules: Any) -> None:
    tested = re.findall(r"alertname: (\w+)", "".join(path.read_text() for path in UNIT_TESTS))
    assert {rule["alert"] for rule in _alerts(rules)} == ALERTS == set(tested)


def test_every_kind_of_incident_has_an_alert(rules: Any) -> None:
    alerts = " ".join(rule["expr"] for rule in _alerts(rules))
    selected = {value for label, value in matched_values(alerts) if label == "kind"}
    counted_apart = {"loss_spike": "spike", "missing_loss": "missing"}
    assert {kind for kind in INCIDENT_KINDS if counted_apart.get(kind, kind) not in selected} == set()


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

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.local_server import listening_server
from tests.support.programs import ALERTMANAGER, needs

CONFIG = Path(__file__).resolve().parents[2] / "dashboards/alertmanager/alertmanager.yml"

pytestmark = needs(ALERTMANAGER)


@pytest.fixture(scope="module")
def alertmanager_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("alertmanager")
    command = [
        ALERTMANAGER,
        f"--config.file={CONFIG}",
        f"--storage.path={folder}",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    ]
    with listening_server(command, folder / "alertmanager.log") as url:
        yield url


def _fire(url: str, *alerts: dict[str, str]) -> None:
    body = json.dumps([{"labels": labels} for labels in alerts]).encode()
    request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()


def _states(url: str, run: str) -> dict[str, str]:
    with urllib.request.urlopen(f'{url}/api/v2/alerts?filter=run="{run}"', timeout=10) as response:
        alerts: list[Any] = json.load(response)
    return {
        f"{alert['labels']['alertname']} {alert['labels']['severity']}": alert["status"]["state"] for alert in alerts
    }


def _assert_states(url: str, run: str, expected: dict[str, str]) -> None:
    """Wait until the alerts of ``run`` are in the states ``expected``, a map from "name severity" to state.

    Alertmanager feeds its inhibition rules in the background: an alert can be read as active
    before the alert that mutes it has reached them. So the first state that is read proves nothing.
    An alert that must stay active proves something only once another one is suppressed.
    """
    deadline = time.monotonic() + 30
    while (states := _states(url, run)) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert states == expected


def test_a_hang_mutes_what_needs_progress(alertmanager_url: str) -> None:
    hung = {"alertname": "HoldfastRunHung", "run": "hung", "severity": "critical"}
    overdue = {"alertname": "HoldfastCheckpointOverdue", "severity": "warning", "needs_progress": "true"}
    _fire(alertmanager_url, hung, overdue | {"run": "hung"}, overdue | {"run": "other"})
    expected = {"HoldfastRunHung critical": "active", "HoldfastCheckpointOverdue warning": "suppressed"}
    _assert_states(alertmanager_url, "hung", expected)
    _assert_states(alertmanager_url, "other", {"HoldfastCheckpointOverdue warning": "active"})


def test_a_daemon_that_is_down_mutes_its_own_alerts(alertmanager_url: str) -> None:
    _fire(
        alertmanager_url,
        {"alertname": "HoldfastDaemonDown", "run": "unwatched", "severity": "critical"},
        {"alertname": "HoldfastLossSpike", "run": "unwatched", "severity": "warning", "needs_daemon": "true"},
        {"alertname": "HoldfastAgentDown", "run": "unwatched", "severity": "warning"},
    )
    expected = {
        "HoldfastDaemonDown critical": "active",
        "HoldfastLossSpike warning": "suppressed",
        "HoldfastAgentDown warning": "active",
    }
    _assert_states(alertmanager_url, "unwatched", expected)


def test_a_critical_alert_mutes_its_own_warning(alertmanager_url: str) -> None:
    dead = {"alertname": "HoldfastRankDead", "run": "dead", "needs_daemon": "true"}
    _fire(alertmanager_url, dead | {"severity": "warning"}, dead | {"severity": "critical"})
    expected = {"HoldfastRankDead warning": "suppressed", "HoldfastRankDead critical": "active"}
    _assert_states(alertmanager_url, "dead", expected)

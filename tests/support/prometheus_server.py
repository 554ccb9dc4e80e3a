"""A real Prometheus with the shipped configuration and rules, for given targets.

with prometheus_server(tmp_path, [Target("127.0.0.1:9464", component="agent", run="demo")]) as prometheus:
    assert prometheus.queries_without_data(panel_queries(dashboard, rate_interval="10s")) == []
"""

import http
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dashboards.local_server import listening_server
from holdfast_cli.run_folder.scrape_targets import TARGETS_FOLDER
from tests.support.programs import needs

_CONFIG_FOLDER = Path(__file__).resolve().parents[2] / "dashboards" / "prometheus"
_REQUEST_DEADLINE_S = 10.0
_INTERVAL = "500ms"

needs_prometheus = needs("prometheus", "promtool")


@dataclass(frozen=True)
class Target:
    """One ``/metrics`` endpoint: ``host:port`` and the labels that `holdfast run` gives it. Empty ones are left out."""

    address: str
    component: str
    run: str


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the instant vector of ``expression`` now. A scalar is one element without labels.

        Raises urllib.error.HTTPError if the expression does not parse or cannot be evaluated.
        """
        parameters = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}", timeout=_REQUEST_DEADLINE_S) as response:
            data = json.load(response)["data"]
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        vector: list[dict[str, Any]] = data["result"]
        return vector

    def queries_without_data(
        self, queries: Iterable[tuple[str, str]], *, deadline_s: float = 30.0
    ) -> list[tuple[str, str]]:
        """Query until every (title, expression) has returned data or the time is over; return those without data."""
        missing = list(queries)
        deadline = time.monotonic() + deadline_s
        while True:
            missing = [(title, expression) for title, expression in missing if not self._has_data(expression)]
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.2)

    def _has_data(self, expression: str) -> bool:
        try:
            return bool(self.query(expression))
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.SERVICE_UNAVAILABLE:  # Prometheus listens before it is ready
                raise
            return False


@contextmanager
def prometheus_server(folder: Path, targets: Sequence[Target], *, runs: Path | None = None) -> Iterator[Prometheus]:
    """Run Prometheus with its data under ``folder``. It scrapes ``targets`` often and sends no alerts.

    ``runs``: folder of runs that it finds by the files that `holdfast run` writes.
    """
    (folder / "targets").mkdir()
    (folder / "targets" / "run.json").write_text(json.dumps([_target_group(target) for target in targets]))
    config = yaml.safe_load((_CONFIG_FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    patterns = [folder / "targets" / "*.json", *([runs / TARGETS_FOLDER / "*.json"] if runs else [])]
    discovery = config["scrape_configs"][0]["file_sd_configs"][0]
    discovery["files"] = [str(pattern) for pattern in patterns]
    discovery["refresh_interval"] = _INTERVAL
    with configured_prometheus(folder, config) as prometheus:
        yield prometheus


@contextmanager
def configured_prometheus(folder: Path, config: Any) -> Iterator[Prometheus]:
    """Run Prometheus with ``config`` and the shipped rules, often scraped and evaluated. It sends no alerts."""
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), _INTERVAL)
    config["rule_files"] = [str(_CONFIG_FOLDER / pattern) for pattern in config["rule_files"]]
    del config["alerting"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        "--log.level=warn",
    ]
    with listening_server(command, folder / "prometheus.log") as url:
        yield Prometheus(url)


def _target_group(target: Target) -> dict[str, Any]:
    labels = {"component": target.component, "run": target.run}
    return {"targets": [target.address], "labels": {name: value for name, value in labels.items() if value}}

"""Fixtures with the files under test."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def dashboards() -> dict[str, Any]:
    """UID -> dashboard, for all of the set."""
    files = sorted((REPOSITORY / "dashboards/grafana/json").glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


@pytest.fixture(
    params=[
        "holdfast-runs",
        "holdfast-run",
        "holdfast-ranks",
        "holdfast-nodes",
        "holdfast-training",
        "holdfast-checkpoints",
        "holdfast-itself",
    ]
)
def dashboard(request: pytest.FixtureRequest, dashboards: dict[str, Any]) -> Any:
    """Each dashboard of the set, one after the other."""
    return dashboards[request.param]


@pytest.fixture(scope="session")
def rules() -> Any:
    return yaml.safe_load((REPOSITORY / "dashboards/prometheus/rules/holdfast.yml").read_text(encoding="utf-8"))

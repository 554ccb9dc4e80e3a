"""Fixtures with the files under test. They also make the repository's folders importable."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))


@pytest.fixture(scope="session")
def dashboard() -> Any:
    return json.loads((REPOSITORY / "dashboards/grafana/holdfast-run.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def rules() -> Any:
    return yaml.safe_load((REPOSITORY / "dashboards/prometheus/rules/holdfast.yml").read_text(encoding="utf-8"))

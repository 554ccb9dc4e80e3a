"""Reads where the daemon and the agent of a run serve, as they wrote it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_cli.run_folder.record import write_json


@dataclass(frozen=True)
class Endpoint:
    """Pid and port that a component writes next to its socket when it serves."""

    pid: int
    metrics_port: int


def read_endpoint(path: Path) -> Endpoint | None:
    """Return the endpoint that a component wrote, or None while there is none."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        return Endpoint(int(fields["pid"]), int(fields["metrics_port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_targets(path: Path, run: str, address: str, endpoints: dict[str, Endpoint]) -> None:
    """Write the targets of ``endpoints`` (component -> endpoint) for Prometheus' file_sd_configs."""
    write_json(
        path,
        [
            {"targets": [f"{address}:{endpoint.metrics_port}"], "labels": {"component": name, "run": run}}
            for name, endpoint in sorted(endpoints.items())
        ],
    )

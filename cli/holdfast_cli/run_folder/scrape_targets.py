"""The file of a run from which Prometheus learns where to scrape.

No run fails because it cannot be scraped: what cannot be written is logged.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from holdfast_cli.run_folder.record import write_json
from holdfast_proto.endpoint import Endpoint

TARGETS_FOLDER = ".prometheus"
"""Folder next to the runs' folders. Prometheus' patterns may have a ``*`` in the name of a file, not in that of a
folder, so the files of all runs are in one folder. No run can have its name."""

log = logging.getLogger(__name__)


def targets_of(run_directory: Path) -> Path:
    """Return the path of a run's file of targets."""
    return run_directory.parent / TARGETS_FOLDER / f"{run_directory.name}.json"


def write_targets(run_directory: Path, endpoints: Mapping[str, Endpoint]) -> None:
    """Replace the targets of a run atomically. ``endpoints``: by component."""
    path = targets_of(run_directory)
    groups = [
        {
            "targets": [f"127.0.0.1:{endpoint.metrics_port}"],
            "labels": {"component": name, "run": run_directory.name},
        }
        for name, endpoint in sorted(endpoints.items())
    ]
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        write_json(path, groups)
    except OSError as error:  # for example if another user has made the folder
        log.warning("Prometheus will not find the run: %s cannot be written: %s", path, error.strerror)


def remove_targets(run_directory: Path) -> None:
    """Remove the targets of a run that has ended: Prometheus would take it for a dead one."""
    path = targets_of(run_directory)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("Prometheus will take the run for a dead one: remove %s: %s", path, error.strerror)

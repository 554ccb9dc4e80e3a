"""Appends every version of every incident to a local file: an emptied store loses no story."""

import logging
from pathlib import Path

from holdfast_daemon.incidents.story import story_text
from holdfast_proto.v1 import store_pb2 as store

log = logging.getLogger(__name__)


class IncidentLog:
    """One JSON object per line; of several with one id the last is the newest."""

    def __init__(self, directory: Path, run: str) -> None:
        self._path = directory / f"incidents-{run}.jsonl"
        self.attempts_total = 0
        self.failures_total = 0

    def append(self, incident: store.Incident) -> None:
        """Append a version; a full disk is counted and logged once, and stops nothing."""
        self.attempts_total += 1
        try:
            line = story_text(incident, indent=None)
            with self._path.open("a") as file:
                file.write(line)
        except Exception as error:  # noqa: BLE001 (whatever it is: the incident is in the store, and the run is led)
            self.failures_total += 1
            if self.failures_total == 1:
                log.error("cannot append to %s: %s", self._path, error)

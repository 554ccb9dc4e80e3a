"""What remains to be read of a run whose daemon is gone."""

import json
from pathlib import Path

from google.protobuf.json_format import ParseDict, ParseError

from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import Incident

_STATUS = "last-status.pb"


def save_last_status(run_directory: Path, status: RunStatus) -> None:
    """Keep the last that the daemon said about a run."""
    (run_directory / _STATUS).write_bytes(status.SerializeToString())


def load_last_status(run_directory: Path) -> RunStatus | None:
    """Return the last that the daemon said, or None if it never spoke."""
    try:
        return RunStatus.FromString((run_directory / _STATUS).read_bytes())
    except FileNotFoundError:
        return None


def load_incidents(run_directory: Path, run: str) -> list[Incident]:
    """Return the newest version of every incident in the daemon's log, oldest first."""
    try:
        lines = (run_directory / f"incidents-{run}.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    found: dict[str, Incident] = {}
    for line in lines:
        try:
            incident = ParseDict(json.loads(line), Incident(), ignore_unknown_fields=True)
        except (json.JSONDecodeError, ParseError):
            continue  # the last line of a full disk
        found[incident.id] = incident
    return list(found.values())

"""What was reported of a run to people: kept in a file, so that a restarted daemon repeats and loses nothing."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_core.naming import incident_number
from holdfast_daemon.notify.message import Message, Notice, as_json, from_json, notice_as_json, notice_from_json

log = logging.getLogger(__name__)

_VERSION = 1
_MOST_INCIDENTS = 1000
_MOST_BYTES = 64 * 2**20


@dataclass
class Reported:
    """The state of one run's notifications. A lost file costs one repeated message for each open incident."""

    instance: str
    """RunSpec.instance of the run."""
    statuses: dict[str, str] = field(default_factory=dict)
    """Incident -> its status when it was last looked at."""
    forgotten: int = 0
    """Incidents up to this number are not in ``statuses`` any more, and are never reported again."""
    has_ended: bool = False
    """Whether the end of the run has been reported."""
    grouped: Sequence[Notice] = ()
    """Notices that wait for their message."""
    queued: Mapping[str, Sequence[Message]] = field(default_factory=dict)
    """Channel -> messages that have no outcome yet."""

    def knows(self, incident: str) -> bool:
        """Whether an incident was looked at before."""
        return incident in self.statuses or incident_number(incident) <= self.forgotten

    def note(self, incident: str, status: str) -> None:
        """Remember the status of an incident, and of only the newest ones."""
        self.statuses[incident] = status
        while len(self.statuses) > _MOST_INCIDENTS:
            oldest = min(self.statuses, key=incident_number)
            del self.statuses[oldest]
            self.forgotten = max(self.forgotten, incident_number(oldest))


def reported_text(reported: Reported) -> str:
    """Return the JSON of the file."""
    return json.dumps(
        {
            "version": _VERSION,
            "instance": reported.instance,
            "statuses": reported.statuses,
            "forgotten": reported.forgotten,
            "has_ended": reported.has_ended,
            "grouped": [notice_as_json(notice) for notice in reported.grouped],
            "queued": {name: [as_json(message) for message in messages] for name, messages in reported.queued.items()},
        }
    )


def load(path: Path, instance: str) -> Reported:
    """Return what the file holds of a run; nothing if it is missing, damaged, or of an earlier run of this name."""
    try:
        with path.open("rb") as file:
            data: Any = json.loads(file.read(_MOST_BYTES))
        if data["version"] != _VERSION or data["instance"] != instance:
            return Reported(instance)
        return Reported(
            instance,
            statuses={str(name): str(status) for name, status in data["statuses"].items()},
            forgotten=int(data["forgotten"]),
            has_ended=bool(data["has_ended"]),
            grouped=tuple(notice_from_json(one) for one in data["grouped"]),
            queued={str(name): tuple(map(from_json, messages)) for name, messages in data["queued"].items()},
        )
    except FileNotFoundError:
        return Reported(instance)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        log.warning("%s cannot be used, open incidents may be reported again: %r", path, error)
        return Reported(instance)

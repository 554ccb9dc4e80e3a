"""What was reported of a run to people: kept in a file, so that a restarted daemon repeats and loses nothing."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_base.files import replace_file
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


def save(path: Path, text: str) -> None:
    """Replace the file; only this user may read it. Raises OSError."""
    replace_file(path, text.encode(), mode=0o600)


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


class ReportedSaver:
    """Writes the file on a thread that exists only while there is something to write."""

    def __init__(self, path: Path, text: Callable[[], str]) -> None:
        self._path = path
        self._text = text
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_due = False
        self._has_failed = False

    def save_soon(self) -> None:
        """Have the file written with all that is known by then."""
        with self._condition:
            self._is_due = True
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="notify-file", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread can be started now: the next change tries again
                    thread.start()
                    self._thread = thread

    def finish(self, patience_s: float) -> None:
        """Wait until the file is written, but not longer than ``patience_s``."""
        with self._condition:
            self._condition.wait_for(lambda: self._thread is None, patience_s)

    def _work(self) -> None:
        while True:
            with self._condition:
                if not self._is_due:
                    self._thread = None
                    self._condition.notify_all()
                    return
                self._is_due = False
            try:
                save(self._path, self._text())
            except Exception as error:  # noqa: BLE001 (whatever it is, messages are sent without the file)
                if not self._has_failed:
                    self._has_failed = True
                    log.error("%s cannot be written: messages may be repeated after a restart: %s", self._path, error)

"""Finds out what is new in a run that people must know of. Does no I/O."""

from holdfast_core.model import CoreState
from holdfast_core.recovery.standstills import has_given_up
from holdfast_daemon.notify.message import Notice
from holdfast_daemon.notify.message_text import RunText, status_of
from holdfast_daemon.notify.reported import Reported
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED

_GIVEN_UP = "given_up"
_CHANGED = "changed"
"""Status of an open incident with another verdict than its first: people may have been told of the wrong ranks."""
_QUIET = "quiet"
"""Status of an incident of the loss that the policy on bad losses does not want reported, or not yet."""
FRESH_S = 600.0
"""Age up to which a new leader reports the end of a run that it finds ended."""


class RunWatch:
    """Compares each state of a run's core with what was reported of the run."""

    def __init__(self, spec: store.RunSpec, reported: Reported) -> None:
        self._wording = RunText(spec)
        self._on = frozenset(spec.notify.on)
        self._ignored = frozenset(spec.notify.ignored)
        self._reported = reported
        self._looked_at: tuple[object, int, str, int] | None = None

    def assume(self, state: CoreState, now: float) -> bool:
        """Look at a run before this daemon leads it; return whether that has changed what is known.

        What ended under another leader was reported by that one. What is open may not have been.
        """
        before = (dict(self._reported.statuses), self._reported.has_ended)
        for name, incident in state.incidents.items():
            is_forgotten = self._reported.knows(name) and name not in self._reported.statuses
            if status_of(incident) != "open" and not is_forgotten:
                self._reported.note(name, self._status(state.record, incident))
        is_old = now - state.record.phase_since_unix_s > FRESH_S
        self._reported.has_ended |= state.record.phase in ENDED and is_old
        return before != (self._reported.statuses, self._reported.has_ended)

    def look(self, state: CoreState) -> tuple[bool, list[Notice]]:
        """Return whether anything has changed, and the notices of it."""
        record = state.record
        seen = (state.incidents, record.phase, record.standstill_incident, record.uncertain_restarts)
        if self._looked_at is not None and self._is_same(seen, self._looked_at):
            return False, []
        self._looked_at = seen
        notices = []
        has_changed = False
        for name, incident in sorted(state.incidents.items(), key=lambda one: one[1].detected_unix_s):
            status = self._status(record, incident)
            last = self._reported.statuses.get(name)
            if status == last or (last is None and self._reported.knows(name)):
                continue
            has_changed = True
            self._reported.note(name, status)
            notice = self._notice(incident, status, last)
            if notice is not None and notice.event in self._on and notice.kind not in self._ignored:
                notices.append(notice)
        if record.phase in ENDED and not self._reported.has_ended:
            has_changed = self._reported.has_ended = True
            notice = self._wording.of_end(record)
            notices += [notice] if notice.event in self._on else []
        return has_changed, notices

    @staticmethod
    def _is_same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
        return one[0] is other[0] and one[1:] == other[1:]  # the core replaces the incidents whenever one changes

    @staticmethod
    def _status(record: store.CoordinatorState, incident: store.Incident) -> str:
        if incident.loss_tier and not incident.notify:
            return _QUIET
        is_left = incident.id == record.standstill_incident and has_given_up(record)
        status = status_of(incident)
        return _GIVEN_UP if is_left else _CHANGED if incident.superseded and status == "open" else status

    def _notice(self, incident: store.Incident, status: str, last: str | None) -> Notice | None:
        if status == _QUIET:
            return None
        if status == _GIVEN_UP:
            return self._wording.of_given_up(incident)
        if status in ("open", "noted") and last not in (None, _QUIET):
            return None  # the incident is the same: only Holdfast's part in it has changed
        return self._wording.of_incident(incident)

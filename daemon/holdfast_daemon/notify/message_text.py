"""What people read of an incident or of the end of a run. What happened is the core's own text."""

from dataclasses import dataclass
from urllib.parse import quote

from holdfast_base.text import without_secrets
from holdfast_core.naming import STOPPED_BY_OPERATOR, kind_name
from holdfast_core.texts.advice import next_line
from holdfast_daemon.notify.message import Culprit, Notice, shortened
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ends_badly

_STATUS = {
    store.INCIDENT_STATE_OPEN: "open",
    store.INCIDENT_STATE_STANDSTILL: "open",
    store.INCIDENT_STATE_NOTED: "noted",
    store.INCIDENT_STATE_RECOVERED: "resolved",
    store.INCIDENT_STATE_RESOLVED: "resolved",
    store.INCIDENT_STATE_FAILED: "failed",
}
_CLOSED_NEXT = {
    "resolved": "Nothing.",
    "failed": "Look whether a newer incident follows. If none does, read this one.",
}
_END_NEXT = {
    "bad loss": (
        "Do not start it again as it is: the newest checkpoint may hold the bad state. Read docs/loss-policy.md, and go"
        " back to a good one."
    ),
    "failed": "Read the incidents and the logs, fix the cause, and start the run again.",
    "stopped": "Nothing. The same command continues it from its newest checkpoint.",
    "finished": "Nothing.",
}
_EVENT = {"open": "incident", "noted": "incident", "resolved": "recovery", "failed": "failure"}


def status_of(incident: store.Incident) -> str:
    """Return the status of an incident's notice: "open", "noted", "resolved" or "failed"."""
    return _STATUS.get(incident.state, "noted")


@dataclass(frozen=True)
class RunText:
    """Writes the notices of one run."""

    spec: store.RunSpec

    @property
    def key(self) -> str:
        """The key of notices about the run itself. A later run of the same name has another one."""
        return f"{self.spec.run}/{self.spec.instance}"

    def of_incident(self, incident: store.Incident) -> Notice:
        """Return the notice of an incident in its present state."""
        status = status_of(incident)
        verdict = incident.verdict
        return Notice(
            event=_EVENT[status],
            status=status,
            key=f"{self.key}/{incident.id}",
            kind=kind_name(verdict.kind),
            what=_safe(self._what(incident, status)),
            next=_safe(self._next(incident, status)),
            culprits=_culprits(incident),
            step=verdict.step,
            generation=incident.generation,
            unix_s=incident.recovered_unix_s or _last_action_unix_s(incident, status),
            link=self._link(f"/incidents/{quote(incident.id, safe='')}"),
            see=f"holdfast incidents show {incident.id} --run {self.spec.run}",
        )

    def of_given_up(self, incident: store.Incident) -> Notice:
        """Return the notice that a run stands still and is not restarted any more."""
        last = incident.actions[-1].what if incident.actions else "not restarted again"
        return Notice(
            event="failure",
            status="open",
            key=f"{self.key}/{incident.id}",
            kind=kind_name(incident.verdict.kind),
            what=_safe(f"{incident.verdict.message}: {last}"),
            next=f"{self._how_to_end()}, or let it continue.",
            culprits=_culprits(incident),
            step=incident.verdict.step,
            generation=incident.generation,
            unix_s=incident.actions[-1].unix_s if incident.actions else incident.detected_unix_s,
            link=self._link(f"/incidents/{quote(incident.id, safe='')}"),
            see=f"holdfast incidents show {incident.id} --run {self.spec.run}",
        )

    def of_end(self, record: store.CoordinatorState) -> Notice:
        """Return the notice of the end of a run."""
        is_bad = ends_badly(self.spec, record.loss_counts)
        by_operator = record.outcome == STOPPED_BY_OPERATOR
        has_failed = (record.phase == store.RUN_PHASE_FAILED or is_bad) and not by_operator
        is_stopped = by_operator or record.HasField("left_step")
        status = "failed" if has_failed else "stopped" if is_stopped else "finished"
        said = record.outcome
        if by_operator:
            said = "stopped by an operator"
        elif record.phase == store.RUN_PHASE_FAILED:
            said = f"failed: {record.outcome}"
        elif is_bad:
            since = record.loss_counts.nonfinite_since
            said = f"{record.outcome}, but its loss was not finite from step {since} to the end"
        after = f"after step {record.newest_step}" if record.newest_step >= 0 else "before the first step ended"
        return Notice(
            event="failure" if status == "failed" else "end",
            status=status,
            key=self.key,
            what=_safe(f"The run has ended {after}: {said}"),
            next=_END_NEXT["bad loss" if is_bad or record.loss_counts.stopped_by else status],
            step=record.newest_step,
            generation=record.generation,
            unix_s=record.phase_since_unix_s,
            link=self._link(""),
            see=f"holdfast incidents --run {self.spec.run}",
        )

    def of_test(self, unix_s: float) -> Notice:
        """Return the notice that `holdfast notify test` sends."""
        return Notice(
            event="test",
            status="test",
            key=f"{self.spec.run}/test",
            what="This is a test of Holdfast's notifications. Nothing has happened.",
            next="Nothing.",
            unix_s=unix_s,
            link=self._address(),
            see=f"holdfast incidents --run {self.spec.run}",
        )

    def _link(self, page: str) -> str:
        address = self._address()
        return f"{address}#/runs/{quote(self.spec.run, safe='')}{page}" if address else ""

    def _address(self) -> str:
        """Return the console's address with the slash at its end that the page needs; "" if none is set."""
        base = self.spec.notify.console_url
        return f"{base.rstrip('/')}/" if base else ""

    @staticmethod
    def _what(incident: store.Incident, status: str) -> str:
        what = incident.verdict.message or kind_name(incident.verdict.kind).replace("_", " ")
        if incident.state == store.INCIDENT_STATE_RECOVERED and incident.recovered_unix_s:
            took_s = max(0.0, incident.recovered_unix_s - incident.detected_unix_s)
            if incident.lost_unknown:
                return f"Recovered {took_s:.1f} s after detection, from what the script itself restored: {what}"
            steps = "1 step" if incident.lost_steps == 1 else f"{incident.lost_steps} steps"
            return f"Recovered {took_s:.1f} s after detection, {steps} lost: {what}"
        ending = incident.actions[-1].what if incident.actions and status in ("resolved", "failed") else ""
        if status == "resolved":
            return f"Resolved: {what}" + (f" ({ending})" if ending else "")
        if status == "failed":
            return f"Not recovered: {what}" + (f" ({ending})" if ending else "")
        return what

    def _how_to_end(self) -> str:
        if not self.spec.ranks_per_node:
            return "End the run with its launcher"
        return f"End the run with `holdfast stop --run {self.spec.run}`"

    def _next(self, incident: store.Incident, status: str) -> str:
        if status in _CLOSED_NEXT:
            return _CLOSED_NEXT[status]
        return next_line(incident, self.spec)


def _culprits(incident: store.Incident) -> tuple[Culprit, ...]:
    """Return the culprits with their places; an incident of an earlier version has none."""
    places = {place.rank: place for place in incident.culprits}
    return tuple(
        Culprit(rank, places[rank].node, places[rank].pid) if rank in places else Culprit(rank)
        for rank in incident.verdict.culprits
    )


def _safe(text: str) -> str:
    """Return a text as it may leave the machine: a rank's last words may hold secrets."""
    return shortened(without_secrets(text))


def _last_action_unix_s(incident: store.Incident, status: str) -> float:
    if status in ("resolved", "failed") and incident.actions:
        return incident.actions[-1].unix_s
    return incident.detected_unix_s

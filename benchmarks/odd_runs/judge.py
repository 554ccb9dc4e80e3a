"""The judge of a run: a control must be left alone, and its twin must be restarted in time."""

import re
from dataclasses import dataclass

from holdfast_proto.message_json import enum_name
from holdfast_proto.v1 import store_pb2 as store

from .case import OddCase
from .odd_run import Observed
from .pause import LoggedPause

EARLY_S = 0.3
"""Seconds by which a restart may come before its deadline, as ranks log a pause a little after the hooks see it."""
LATE_S = 5.0
REPORT_MARGIN_S = 2.0
_SAYS_MISMATCH = re.compile(r"left out|made another call|different calls|different sizes|wait for each other")
"""What the text of a mismatch says. A control makes the same calls on all ranks."""
_LEFT_ALONE = (store.INCIDENT_STATE_RESOLVED, store.INCIDENT_STATE_NOTED)


@dataclass(frozen=True)
class Result:
    """The result of one run of a case."""

    case: str
    twin: bool
    problems: tuple[str, ...]
    """Problems of the run. Empty if it was treated as it must be."""
    seconds: float | None
    """Seconds of a control's longest pause, or of a twin from its last progress to the restart or the rank's end."""
    report_deadline_s: float
    restart_deadline_s: float
    restarts: int
    failed: bool
    notes: tuple[str, ...]
    """State, kind and message of every incident."""
    too_many_notes: bool
    took_s: float


def judge(case: OddCase, observed: Observed, *, twin: bool) -> Result:
    """Compare a run with what its case demands."""
    played = case.as_twin() if twin else case
    seconds = _restarted_after(case, observed) if twin else _longest_pause(observed.pauses)
    problems = (*_of_any(observed), *(_of_twin(played, observed, seconds) if twin else ()))
    if not twin:
        problems += (*_of_control(case, observed), *_of_pause(case, seconds))
    return Result(
        case=case.name,
        twin=twin,
        problems=problems,
        seconds=None if seconds is None else round(seconds, 2),
        report_deadline_s=played.report_deadline_s,
        restart_deadline_s=played.restart_deadline_s,
        restarts=0 if observed.status is None else observed.status.restarts,
        failed=observed.exit_code != 0,
        notes=tuple(_describe(incident) for incident in observed.incidents),
        too_many_notes=not twin and len(observed.incidents) > case.notes,
        took_s=round(observed.took_s, 1),
    )


def _of_any(observed: Observed) -> tuple[str, ...]:
    if observed.exit_code is None:
        return (f"the run has not ended after {observed.took_s:.0f} s",)
    if observed.exit_code:
        return (f"exit code {observed.exit_code}: {observed.last_words}",)
    return ()


def _of_control(case: OddCase, observed: Observed) -> tuple[str, ...]:
    problems = []
    status = observed.status
    if status is None:
        problems.append("the run left no status")
    elif status.restarts or status.generation != 1:
        problems.append(f"restarted {status.restarts} times, generation {status.generation}")
    elif status.newest_step != case.last_step:
        problems.append(f"trained to step {status.newest_step} of {case.last_step}")
    if len(observed.incidents) > case.notes:
        problems.append(f"{len(observed.incidents)} incidents, {case.notes} allowed")
    said = [text for one in observed.incidents for text in (one.verdict.message, *(each.what for each in one.actions))]
    problems += [f"false: {text}" for text in said if _SAYS_MISMATCH.search(text)]
    problems += [f"not closed: {_describe(one)}" for one in observed.incidents if one.state not in _LEFT_ALONE]
    return tuple(problems)


def _of_pause(case: OddCase, longest_s: float | None) -> tuple[str, ...]:
    """Return a problem if the pause was not between its deadlines. Such a control proves nothing."""
    if longest_s is None:
        return ("no pause was logged",)
    if longest_s >= case.restart_deadline_s:
        return (f"invalid: the pause took {longest_s:.1f} s, and a restart is due after {case.restart_deadline_s:g} s",)
    if case.outlasts_report and longest_s <= case.report_deadline_s:
        return (f"invalid: the pause took {longest_s:.1f} s, and is reported after {case.report_deadline_s:g} s",)
    return ()


def _of_twin(played: OddCase, observed: Observed, seconds: float | None) -> tuple[str, ...]:
    problems = []
    due_s = played.restart_deadline_s
    if seconds is None:
        problems.append("never restarted")
    elif not due_s - EARLY_S <= seconds <= due_s + LATE_S:
        problems.append(f"ended after {seconds:.1f} s, due after {due_s:g} s")
    status = observed.status
    restarts = 0 if status is None else status.restarts
    if played.ends_late:
        problems += _of_late_end(played, observed, restarts)
    elif restarts != 1:
        problems.append(f"restarted {restarts} times")
    return tuple(problems)


def _of_late_end(played: OddCase, observed: Observed, restarts: int) -> list[str]:
    """Return problems of a run that pauses after its last step. It must be reported, and not restarted."""
    problems = [f"restarted {restarts} times after its last step"] if restarts else []
    began_s = observed.pauses[0].began_s if observed.pauses else 0.0
    within_s = played.report_deadline_s + REPORT_MARGIN_S
    if not any(incident.detected_unix_s < began_s + within_s for incident in observed.incidents):
        problems.append(f"not reported within {within_s:g} s")
    return problems


def _restarted_after(case: OddCase, observed: Observed) -> float | None:
    first = [pause for pause in observed.pauses if pause.generation == 1]
    if not first:
        return None
    last = first[-1]
    ended_s = observed.restart_seen_s
    if case.ends_late and ended_s is None:
        ended_s = observed.culprit_gone_s
    if ended_s is None:
        return None
    # The signal that ends a rank may complete its last call, and the rank then logs a move.
    moves_s = [at_s for at_s in last.moves_s if at_s < ended_s] if case.twin.from_last_move else []
    return ended_s - max([last.began_s, *moves_s])


def _longest_pause(pauses: tuple[LoggedPause, ...]) -> float | None:
    lasted = [pause.ended_s - pause.began_s for pause in pauses if pause.ended_s is not None]
    return max(lasted, default=None)


def _describe(incident: store.Incident) -> str:
    state = enum_name(store.IncidentState, incident.state)
    kind = enum_name(store.VerdictKind, incident.verdict.kind)
    after_s = incident.detected_unix_s - incident.last_progress_unix_s
    actions = "; ".join(f"+{one.unix_s - incident.detected_unix_s:.1f} s {one.what}" for one in incident.actions)
    return f"{state} {kind} after {after_s:.1f} s: {incident.verdict.message} [{actions}]"

"""A run that stands still: reported soon, restarted late.

The report is an incident in state ``standstill``, at the learned deadlines. Most standstills end by themselves (an
evaluation, a compilation, a slow disk). The incident is then resolved, and the run remembers that kind of pause: it is
not reported again unless it lasts twice as long. In a phase that the script has marked, ranks that visibly work are not
reported either (signs.py). A restart follows only if the signs last for as long as restart_patience.py says. After
three restarts at one step for uncertain signs the run is left as it is.
"""

from collections.abc import Mapping
from dataclasses import replace

from holdfast_core import incidents
from holdfast_core.detection import view_of
from holdfast_core.detectors.deaths import death
from holdfast_core.detectors.framework import HANGS, Finding
from holdfast_core.naming import activity_name, kind_name, phase_name
from holdfast_core.recovery import signs
from holdfast_core.recovery.restart_patience import UNCERTAIN_RESTARTS, RestartPatience, Sign, uncertain_restarts
from holdfast_core.recovery.signs import Judgement
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

KNOWN_PAUSES = 32
"""Kinds of pauses that a run remembers."""

_KNOWN_MARGIN = 2.0
"""Factor over the longest known pause of a kind, before such a standstill is reported."""

_ALIKE = (store.VERDICT_KIND_STANDSTILL, store.VERDICT_KIND_HUNG_COLLECTIVE)
"""Verdicts on one kind of pause."""

_LEARNED_FROM_S = 1.0
"""Shortest stay in a phase that is remembered: shorter ones never decide the patience."""

_LEARNED_STEP = 1.1
"""Factor by which a stay must exceed the known one: else every step would write the record again."""


def is_one(finding: Finding) -> bool:
    """Return whether only time confirms a finding: the ranks exist and do not move, and none has ended."""
    return finding.stands_still and finding.verdict.kind in HANGS


def note_pauses(tick: Tick) -> None:
    """Note when several or all ranks are stopped together: see :class:`View`."""
    stopped = tick.ranks.stopped
    if stopped > 1:
        tick.state = replace(tick.state, several_stopped_unix_s=tick.now)
    if stopped and stopped == tick.ranks.alive:
        tick.state = replace(tick.state, all_stopped_unix_s=tick.now)


def learn(tick: Tick, summary: store.StepSummary) -> None:
    """Remember the longest healthy stay in each phase. It raises the patience in that phase, and no deadline."""
    known = tick.record.longest_phase_s
    longer = {
        phase: seconds
        for phase, seconds in summary.phase_s.items()
        if seconds > max(_LEARNED_FROM_S, _LEARNED_STEP * known.get(phase, 0.0))
    }
    if longer:
        with tick.edit_record() as record:
            record.longest_phase_s.update(longer)


def judge(tick: Tick, finding: Finding) -> Judgement:
    """Return whether a standstill is due for a restart now."""
    patience = RestartPatience.of(tick.state.spec, tick.record)
    judged = signs.judge(view_of(tick), finding.verdict, patience)
    aborts = tick.state.ends_hung_ranks
    if tick.state.spec.mode != store.MODE_ACT and not aborts:
        return replace(judged, is_due=False)
    if aborts and not of_culprits(tick, finding.verdict):
        judged = _judge_without_culprit(tick, patience)
    if tick.state.spec.auto and judged.sign == Sign.NONE and signs.is_any_at_work(view_of(tick), finding.verdict):
        return replace(judged, is_due=False)  # it may evaluate, or save: nothing in the script says so
    # A launcher restarts as often as it is told to. So aborts for certain signs are limited too.
    is_limited = aborts or judged.sign >= Sign.LIKELY
    if judged.is_due and is_limited and uncertain_restarts(tick.record) >= UNCERTAIN_RESTARTS:
        _give_up(tick)
        return replace(judged, is_due=False)
    return judged


def _judge_without_culprit(tick: Tick, patience: RestartPatience) -> Judgement:
    """Judge whether any rank may be ended, because no culprit is known or none can be ended: only time decides."""
    judged = signs.by_time_alone(view_of(tick), patience)
    if not judged.is_due or stand_in(tick):
        return judged
    current = present(tick)
    if current is not None and tick.once("no rank can be ended"):
        incidents.add_line(tick, current, "no rank is ended: none lives whose process is known for sure")
    return replace(judged, is_due=False)


def report(tick: Tick, finding: Finding) -> store.Incident | None:
    """Keep a standstill as an incident; return the incident if it is new."""
    verdict = finding.verdict
    since = tick.now if finding.last_progress_unix_s is None else finding.last_progress_unix_s
    current = present(tick)
    if current is not None:
        if _names_more(current.verdict, verdict):
            with incidents.edit(tick, current) as incident:
                incident.verdict.CopyFrom(verdict)
                incident.actions.add(unix_s=tick.now, what=f"more ranks stand still: {verdict.message}")
            return None
        if current.verdict.culprits and verdict.kind == store.VERDICT_KIND_STANDSTILL:
            return None  # it says that nobody is known to be missing. That is no news beside a rank that is named
        if not same(current.verdict, verdict) and tick.once(f"standstill {verdict.kind} {list(verdict.culprits)}"):
            says_more = verdict.culprits or verdict.HasField("mismatch") or not current.verdict.culprits
            if says_more and not is_any_ending(tick):
                _supersede(tick, current, verdict)
            else:  # ranks that give up waiting look as if they had not come
                incidents.add_line(tick, current, f"also seen: {verdict.message}")
        return None
    # A run that is left as it is needs a person now.
    if uncertain_restarts(tick.record) < UNCERTAIN_RESTARTS and _is_usual(tick, verdict, tick.now - since):
        return None
    incident = incidents.open_standstill(tick, verdict, last_progress_unix_s=since)
    with tick.edit_record() as record:
        record.standstill_incident = incident.id
    return incident


def _is_usual(tick: Tick, verdict: store.Verdict, lasted_s: float) -> bool:
    """Whether a standstill is no news yet: the run knows such pauses, or its ranks work in a marked phase."""
    if lasted_s < _KNOWN_MARGIN * _known_s(tick, verdict):
        return True
    spec = tick.state.spec
    return signs.is_at_work(view_of(tick), verdict, RestartPatience.of(spec, tick.record), phases_are_guessed=spec.auto)


def _supersede(tick: Tick, current: store.Incident, verdict: store.Verdict) -> None:
    """Replace the verdict of the present standstill: of each tick, one verdict explains why the run stands still.

    Each verdict does so once in a generation, so that two that alternate do not fill the story.
    """
    with incidents.edit(tick, current) as incident:
        incident.actions.add(unix_s=tick.now, what=f"newer evidence replaces this verdict: {incident.verdict.message}")
        incident.verdict.CopyFrom(verdict)
        incident.superseded += 1


def _names_more(reported: store.Verdict, newest: store.Verdict) -> bool:
    """Whether a verdict names the ranks of the reported one and others, which passed their deadlines later."""
    return newest.kind == reported.kind and set(newest.culprits) > set(reported.culprits) > set()


def settle(tick: Tick, *, is_seen: bool) -> None:
    """Resolve the standstill when ranks move again; it is a pause that this run knows from now on."""
    current = present(tick)
    if current is None or is_seen or view_of(tick).late:
        return  # ranks are late although no detector has found anything in this tick: none of them has moved
    if is_any_ending(tick):
        return  # a rank has failed, or is about to end: that none is late any more is no movement
    lasted_s = max(0.0, tick.now - current.last_progress_unix_s)
    _know(tick, current.verdict, lasted_s)
    incidents.resolve(tick, current, f"the run moves again after {lasted_s:.0f} s, without a restart")
    with tick.edit_record() as record:
        record.standstill_incident = ""


def is_any_ending(tick: Tick) -> bool:
    """Return whether a rank has failed, or is about to end."""
    return tick.state.first_exit_unix_s > 0.0 or any(rank.dying for rank in tick.ranks.values())


def take_over(tick: Tick, verdict: store.Verdict) -> store.Incident | None:
    """Return the incident of the present standstill for a restart, if it is about the same fault.

    The standstill is over in any case: the restart ends it.
    """
    current = present(tick)
    if current is None:
        return None
    with tick.edit_record() as record:
        record.standstill_incident = ""
    if same(current.verdict, verdict):
        return current
    incidents.resolve(tick, current, f"the cause is another one: {verdict.message}")
    return None


def drop(tick: Tick, what: str, *, state: "store.IncidentState" = store.INCIDENT_STATE_RESOLVED) -> None:
    """Close the present standstill, because something else has decided how the run continues."""
    current = present(tick)
    if current is not None:
        incidents.resolve(tick, current, what, state=state)
        with tick.edit_record() as record:
            record.standstill_incident = ""


def explaining(tick: Tick, verdict: store.Verdict) -> store.Incident | None:
    """Return the incident of the present standstill if it explains the deaths that ``verdict`` is about.

    Its culprits were named before any rank ended. The others waited for them, and have given up since: torch's own
    timeout, the abort of a watchdog, a lost connection, or the launcher's signal after these. An end of another kind
    is a fault of its own. So is any, if nobody was named.
    """
    current = present(tick)
    if current is None or not current.verdict.culprits or verdict.kind != store.VERDICT_KIND_DEAD_RANK:
        return None
    exits = [rank.exit for rank in tick.ranks.values() if rank.HasField("exit")]
    return current if all(map(death.may_follow_from_a_hang, exits)) else None


def present(tick: Tick) -> store.Incident | None:
    """Return the incident of the present standstill."""
    return tick.state.incidents.get(tick.record.standstill_incident)


def has_given_up(record: store.CoordinatorState) -> bool:
    """Return whether the run stands still and is not restarted any more."""
    return bool(record.standstill_incident) and uncertain_restarts(record) >= UNCERTAIN_RESTARTS


def same(one: store.Verdict, other: store.Verdict) -> bool:
    """Whether two verdicts are about the same ranks and the same kind of fault."""
    return one.kind == other.kind and set(one.culprits) == set(other.culprits)


def _give_up(tick: Tick) -> None:
    current = present(tick)
    if current is not None and tick.once("restarts given up"):
        tried = "restarts at this step have not helped, and no sign is certain"
        what = f"not restarted again: {UNCERTAIN_RESTARTS} {tried}"
        if tick.state.ends_hung_ranks:
            what = f"no rank is ended again: {UNCERTAIN_RESTARTS} aborts at this step have not helped"
        what += ". The run is left as it is: look at the stacks, then end it or let it continue"
        incidents.add_line(tick, current, what)


def _known_s(tick: Tick, verdict: store.Verdict) -> float:
    kind = _kind(verdict.kind, verdict)
    return max((pause.longest_s for pause in tick.record.known_pauses if pause.kind == kind), default=0.0)


def _know(tick: Tick, verdict: store.Verdict, lasted_s: float) -> None:
    """Remember a pause. Where all ranks pause, the next time some may wait for the others already: both are known."""
    alike = _ALIKE if verdict.kind in _ALIKE else (verdict.kind,)
    known = {pause.kind: pause.longest_s for pause in tick.record.known_pauses}
    for kind in (_kind(one, verdict) for one in alike):
        known[kind] = max(lasted_s, known.pop(kind, 0.0))  # popped first, so that the newest kind comes last
    newest = list(known.items())[-KNOWN_PAUSES:]
    with tick.edit_record() as record:
        record.ClearField("known_pauses")
        record.known_pauses.extend(store.KnownPause(kind=one, longest_s=longest_s) for one, longest_s in newest)


def _kind(kind: int, verdict: store.Verdict) -> str:
    """Return what pauses of one kind have in common. The rank is no part of it: any rank may evaluate.

    What the ranks of a standstill do is no part either: it is seen after the report, from their stacks.
    """
    where = f"{kind_name(kind)} in {phase_name(verdict.phase)}"
    if kind == store.VERDICT_KIND_STANDSTILL:
        return where
    return f"{where}, {activity_name(verdict.activity or verdict.standstill.example.activity)}"


def of_culprits(tick: Tick, verdict: store.Verdict) -> list[store.EndedRank]:
    """Return the culprits that can be ended: those that live, and whose process is known for sure."""
    node_of = _node_of(tick)
    return [_target(tick.ranks[rank], node_of[rank]) for rank in verdict.culprits if rank in node_of]


def stand_in(tick: Tick) -> list[store.EndedRank]:
    """Return the first rank that can be ended, if any. Launchers end or restart all ranks when one of them ends."""
    node_of = _node_of(tick)
    return [_target(tick.ranks[rank], node_of[rank]) for rank in sorted(node_of)[:1]]


def _node_of(tick: Tick) -> Mapping[int, str]:
    """Return rank -> node of those that can be ended."""
    generation = tick.record.generation
    return {
        rank.rank: name
        for name, node in tick.state.members.items()
        if node.generation == generation
        for rank in node.ranks
        if rank.start_ticks and rank.pid and rank.life == store.LIFE_RUNNING
    }


def _target(rank: store.RankState, node: str) -> store.EndedRank:
    return store.EndedRank(
        rank=rank.rank, pid=rank.pid, start_ticks=rank.start_ticks, stalled_s=rank.stalled_s, node=node
    )

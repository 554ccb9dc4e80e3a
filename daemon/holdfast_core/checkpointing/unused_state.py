"""A run that ended well and has not used the state that it was to continue from: it trained from its own start.

A rank that attaches and trains without the state is refused by its own hooks. Here are the other two: ranks that never
attached, which nothing can refuse, and ranks that closed their hooks before they began a step. The hooks then leave
words in the black box. Whether that was wrong shows only at the end: one such rank among others may do other work.
"""

from holdfast_core import incidents
from holdfast_core.detectors.deaths.death import is_clean
from holdfast_core.recovery.ending import finish
from holdfast_core.texts.refusals import unused
from holdfast_core.texts.render import write
from holdfast_core.tick import Tick
from holdfast_proto.exit_codes import ExitCode
from holdfast_proto.v1 import store_pb2 as store

_HOOKS_SAY = "holdfast: "
"""Begin of the last words that are the hooks' own. Of a rank that ended with code 0, only a refusal has any."""


def refuse(tick: Tick) -> bool:
    """End the run as failed if its ranks have all ended and no one has used the state; return whether it has.

    The state stays as it is: without a step, nothing was saved.
    """
    exits = {number: rank.exit for number, rank in tick.ranks.items()}
    may_restore = tick.state.saves and not tick.state.spec.auto
    if not may_restore or tick.record.resumed_step < 0 or not all(map(_has_not_used, exits.values())):
        return False
    attached = [number for number, ended in sorted(exits.items()) if not ended.never_attached]
    what = unused(tick.record.source, tick.record.resumed_step, any_attached=bool(attached))
    verdict = store.Verdict(
        kind=store.VERDICT_KIND_BAD_CONFIGURATION,
        culprits=attached or sorted(exits),
        confidence_ratio=1.0,
        death=store.DeathDetail(ends=[_end_of(number, what) for number in attached or sorted(exits)]),
    )
    write(verdict)
    incidents.close(tick, store.INCIDENT_STATE_FAILED, verdict.message)
    incidents.note_incident(tick, verdict)
    finish(tick, store.RUN_PHASE_FAILED, verdict.message)
    return True


def _has_not_used(ended: store.RankExit) -> bool:
    return is_clean(ended) and (ended.never_attached or ended.last_words.startswith(_HOOKS_SAY))


def _end_of(number: int, what: str) -> store.RankEnd:
    return store.RankEnd(rank=number, cause=store.END_CAUSE_CONFIGURATION, code=ExitCode.SUCCESS, said=what, step=-1)

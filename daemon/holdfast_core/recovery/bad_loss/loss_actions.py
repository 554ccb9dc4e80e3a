"""The action on a bad loss whose budget is used up: to notify, to roll the run back, or to stop it.

A stop writes no checkpoint: the state is bad, and the newest checkpoint is what the next start continues from. It
removes none either: checkpoints of the last steps may be bad, and only a person can say so. The outcome names the
newest good one. Agents record which ones are in doubt, and refuse a start that does not say where to continue.
"""

from holdfast_core import incidents
from holdfast_core.accounting import ledger
from holdfast_core.checkpointing import proven_steps
from holdfast_core.recovery import hang_aborts, standstills
from holdfast_core.recovery.bad_loss import roll_back
from holdfast_core.recovery.ending import finish
from holdfast_core.tick import Tick
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import ENDED, ROLLED_BACK, TIER_WORDS, rule_of

_NOUNS = {
    store.LOSS_TIER_BLIP: ("blip", "blips"),
    store.LOSS_TIER_SPIKE: ("spike", "spikes"),
    store.LOSS_TIER_SLOW_RISE: ("slow rise", "slow rises"),
    store.LOSS_TIER_DIVERGENCE: ("loss since the divergence was found", "losses in a row since it was found"),
    store.LOSS_TIER_NON_FINITE: ("loss that is not finite", "losses in a row that are not finite"),
}
_LEAVES = (store.RUN_PHASE_LEAVING, *ENDED)
_RESTARTS = (store.RUN_PHASE_GATHERING, store.RUN_PHASE_STOPPING)


def answer(tick: Tick, incident: store.Incident, tier: "store.LossTier", count: int, bad_step: int | None) -> None:
    """Take the action of a tier on an incident.

    ``bad_step``: step before which every state is good; None: no state of this start is known to be good.
    """
    rule = rule_of(tick.state.spec, tier)
    if rule.action == store.LOSS_ACTION_NOTE or roll_back.is_ordered(tick):
        return
    nouns = _NOUNS[tier]
    action = store.LossAction.Name(rule.action).removeprefix("LOSS_ACTION_").lower()
    setting = f'[loss] {TIER_WORDS[tier]} = "{action}"'
    budget = f", of which {rule.budget} are tolerated" if rule.budget else ""
    why = f"{setting}: {count} {nouns[count != 1]}{budget}"
    with incidents.edit(tick, tick.state.incidents[incident.id]) as edited:
        edited.notify = True
        if rule.budget:  # else the incident itself says it all
            edited.actions.add(unix_s=tick.now, what=why)
    if rule.action == store.LOSS_ACTION_STOP:
        refusal = _refusal(tick)
        if refusal:
            incidents.add_line(tick, edited, f"the run is not stopped: {refusal}")
        else:
            _stop(tick, edited, tier, why, bad_step)
    elif rule.action == store.LOSS_ACTION_ROLL_BACK:
        _answer_by_roll_back(tick, edited, tier, why, bad_step)
    else:
        _tell_script(tick, tier)


def _answer_by_roll_back(
    tick: Tick, incident: store.Incident, tier: "store.LossTier", why: str, bad_step: int | None
) -> None:
    """Roll the run back. If it cannot return to a good state, stop it."""
    refusal = _refusal_of_restart(tick)
    obstacle = "" if refusal else roll_back.obstacle(tick, bad_step)
    if refusal or (obstacle and tick.observes):
        incidents.add_line(tick, incident, f"the run is not rolled back: {refusal or obstacle}")
        _tell_script(tick, tier)
    elif obstacle or bad_step is None:
        _stop(tick, incident, tier, f"{why}, and {obstacle}", bad_step)
    else:
        _roll_back(tick, incident, bad_step)


def _roll_back(tick: Tick, incident: store.Incident, before_step: int) -> None:
    """Have the ranks stop, and start again from a state before a step."""
    roll_back.order(tick, before_step, tick.record.loss_counts.judged_step)
    number, limit = tick.record.loss_counts.roll_backs, roll_back.most(tick.state.spec)
    line = f"rolls back, {number} of {limit}: to the newest state of all ranks from before step {before_step}"
    incidents.add_line(tick, incident, line)
    if tick.record.phase in _RESTARTS:  # a restart is under way already, for another reason: it takes that state
        return
    incident = incidents.reopen(tick, tick.state.incidents[incident.id], incident.verdict)
    ledger.note_verdict(tick, tick.now)
    if tick.observes:
        hang_aborts.end_one(tick, incident)
        return
    with tick.edit_record() as record:
        record.outcome = incident.verdict.message
    tick.enter(store.RUN_PHASE_STOPPING)


def _tell_script(tick: Tick, tier: "store.LossTier") -> None:
    """Pass a bad loss on to the ranks, whose script may have a remedy of its own."""
    if TIER_WORDS[tier] not in ROLLED_BACK or tick.record.phase != store.RUN_PHASE_RUNNING:
        return
    found = session.SpikeFound(tier=TIER_WORDS[tier], step=tick.record.loss_counts.judged_step)
    for node in tick.record.nodes:
        tick.send_to(node, store.NodeCommand(generation=tick.record.generation, spike_found=found))


def _refusal(tick: Tick) -> str:
    """Return why the policy must not stop the run; "" if it may."""
    if tick.observes:
        return "another launcher has started its ranks, and Holdfast only watches them"
    if tick.state.spec.mode != store.MODE_ACT:
        return "its mode is observe"
    if tick.record.phase in _LEAVES:
        return "it ends already"
    return ""


def _refusal_of_restart(tick: Tick) -> str:
    """Return why the policy must not start the ranks again; "" if it may."""
    if not (tick.observes and tick.state.saves):
        return _refusal(tick)
    if tick.state.spec.on_hang != store.HANG_ACTION_RESTART:
        return "its launcher has started its ranks, and --on-hang is not restart"
    if not tick.state.ends_hung_ranks:
        return "its launcher has no restarts left"
    if not standstills.stand_in(tick):
        return "no rank has said which process it is, so none can be ended"
    return "it ends already" if tick.record.phase in _LEAVES else ""


def _stop(tick: Tick, incident: store.Incident, tier: "store.LossTier", why: str, bad_step: int | None) -> None:
    is_one_event = tier in (store.LOSS_TIER_BLIP, store.LOSS_TIER_SPIKE, store.LOSS_TIER_SLOW_RISE)
    step = incident.verdict.step if is_one_event else tick.record.loss_counts.judged_step
    outcome = f"stopped at step {step} because of {why}; {_last_finite(tick, tier)}{_way_back(tick, bad_step)}"
    with tick.edit_record() as record:
        record.loss_counts.stopped_by = tier
        doubtful = proven_steps.first_doubtful(tick) if bad_step is None else bad_step
        record.bad_loss.CopyFrom(store.BadLoss(from_step=doubtful, reason=outcome, since_unix_s=tick.now))
    incidents.add_line(tick, incident, outcome)
    incidents.close(tick, store.INCIDENT_STATE_FAILED, outcome)
    finish(tick, store.RUN_PHASE_FAILED, outcome, is_state_good=False)


def _last_finite(tick: Tick, tier: "store.LossTier") -> str:
    counts = tick.record.loss_counts
    if tier != store.LOSS_TIER_NON_FINITE:
        return ""
    if not counts.HasField("finite_step"):
        return "no loss was finite; "
    since = f"the loss is not finite since step {counts.nonfinite_since}; "
    return f"{since}the last finite loss was {counts.finite_loss:.4g} at step {counts.finite_step}; "


def _way_back(tick: Tick, bad_step: int | None) -> str:
    """Return how to start again from a good checkpoint. A start that names none is refused.

    More may be committed after this: some are being written. So the line names steps, and not only what exists now.
    """
    if bad_step is None:
        return (
            "so the state that it began with may be bad already: start again with --continue-from and the step of a"
            " checkpoint from before the first bad loss of an earlier start, or with --from-scratch"
        )
    good = proven_steps.newest_committed(tick, bad_step)
    doubt = f"checkpoints of step {bad_step} or later may hold the bad state"
    if good is None:
        return (
            f"{doubt}, and none from before it is committed: if one is by now, start again with --continue-from and its"
            " step, else with --from-scratch"
        )
    return f"{doubt}: start again with --continue-from {good}, or a newer checkpoint from before step {bad_step}"

"""What is done about a bad loss: what counts, when the budget is used up, and how a run is stopped."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_core.detectors import registry
from holdfast_core.model import AcknowledgeRequest
from holdfast_core.reading.attention import RECENT_S, is_bad, urgent_incident
from holdfast_core.recovery.bad_loss.loss_policy import is_finite_loss
from holdfast_core.texts.advice import next_line
from holdfast_daemon.validation.message_rules import check_spec
from holdfast_proto.checks.value_rules import RefusedError
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import DEFAULTS, TIER_WORDS, rule_of
from tests.core.runs import send_event
from tests.support.core_world import World

BUDGET = 10
NAN = math.nan


def running(policy: dict[str, tuple[str, int]] | None = None, **options: Any) -> World:
    """Return a run that trains; ``policy``: tier -> action and budget."""
    world = World(ranks_per_node=1, **options)
    for tier, (action, budget) in (policy or {}).items():
        rule = store.LossRule(action=f"LOSS_ACTION_{action.upper()}", budget=budget)
        getattr(world.spec.loss_policy, tier).CopyFrom(rule)
    world.until("starting")
    world.train(3)
    assert world.phase == "running"
    return world


def report(world: World, *losses: float | None, **numbers: Any) -> None:
    """Let the only rank finish steps with these losses; None: it reports none."""
    for loss in losses:
        rank = world.rank(0)
        step = rank.progress.step
        rank.progress.step, rank.stalled_s, rank.still_s = step + 1, 0.0, 0.0
        rank.steps_done += 1
        summary = store.StepSummary(step=step, generation=world.state.record.generation, duration_s=0.3, **numbers)
        if loss is not None:
            summary.loss_sum, summary.loss_count = loss, 1
            if not math.isfinite(loss):
                summary.nonfinite.add(rank=0, quantity="loss")
        send_event(world, generation=summary.generation, step_summary=summary, seconds=0.01)


def restart(world: World) -> None:
    world.end(0, signal=9)
    world.until("starting")
    world.train(1)
    assert world.phase == "running"


def marked(world: World) -> list[str]:
    return [TIER_WORDS[incident.loss_tier] for incident in world.incidents if incident.notify]


def test_a_loss_that_is_not_finite_is_notified_of_after_the_budget_and_once() -> None:
    world = running()
    report(world, *[NAN] * BUDGET)
    assert [incident.loss_tier for incident in world.incidents] == [store.LOSS_TIER_NON_FINITE]
    assert marked(world) == []
    report(world, *[NAN] * 30)
    assert (marked(world), world.phase) == (["non_finite"], "running")
    assert "11 losses in a row that are not finite, of which 10 are tolerated" in world.incidents[0].actions[-1].what


def test_a_finite_loss_begins_the_count_again() -> None:
    world = running()
    for _ in range(3):
        report(world, *[NAN] * BUDGET, 2.0)
    assert marked(world) == []
    counts = world.state.record.loss_counts
    assert (counts.nonfinite, counts.HasField("nonfinite_since")) == (0, False)
    for _ in range(2):
        report(world, *[NAN] * (BUDGET + 1), 2.0)
    assert marked(world) == ["non_finite", "non_finite"], "each row is an incident of its own"


def train_to(world: World, step: int) -> None:
    """Let the only rank finish all steps before ``step`` with a finite loss."""
    report(world, *[2.0] * (step - world.rank(0).progress.step))


def noted_steps(world: World) -> list[int]:
    return [incident.verdict.step for incident in world.incidents]


def messages(world: World) -> list[str]:
    return [incident.verdict.message for incident in world.incidents]


def test_two_short_episodes_are_two_incidents_and_nobody_is_notified() -> None:
    world = running()
    for first in (100, 160):
        train_to(world, first)
        report(world, *[NAN] * 3)
    train_to(world, 200)
    assert noted_steps(world) == [100, 160]
    assert messages(world) == ["loss is not finite since step 100", "loss is not finite since step 160"]
    assert marked(world) == []


@pytest.mark.parametrize("second", [420, 208], ids=["the detector reports it", "it comes soon after the first"])
@pytest.mark.parametrize("action", ["notify", "stop"])
def test_the_episode_that_exceeds_the_budget_is_named_and_no_earlier_one(action: str, second: int) -> None:
    world = running({"non_finite": (action, BUDGET)})
    train_to(world, 200)
    world.node_states["node0"].checkpoints[:] = [150]
    report(world, *[NAN] * 3)
    train_to(world, second)
    world.node_states["node0"].checkpoints[:] = [150, second - 3]
    report(world, *[NAN] * (BUDGET + 1))
    assert (noted_steps(world), [incident.notify for incident in world.incidents]) == ([200, second], [False, True])
    back = f"the newest proven checkpoint is that of step {second - 3}"
    assert messages(world)[1] == f"loss is not finite since step {second}; {back}"
    assert "11 losses in a row" in " ".join(one.what for one in world.incidents[1].actions)
    assert not any("losses in a row" in one.what for one in world.incidents[0].actions)
    kept = [command.keep_checkpoint.step for command in world.sent("keep_checkpoint")]
    assert kept == [150, second - 3], "the newest checkpoint from before each of them is kept"
    assert world.phase == ("failed" if action == "stop" else "running")
    if action == "stop":
        outcome = world.state.record.outcome
        assert f"since step {second}; the last finite loss was 2 at step {second - 1};" in outcome
        assert f"--continue-from {second - 3}, or a newer checkpoint from before step {second - 1}" in outcome
        assert "200" not in outcome


def test_each_long_episode_is_named_by_its_first_step() -> None:
    world = running()
    for first in (100, 112, 124):
        train_to(world, first)
        report(world, *[NAN] * (BUDGET + 1))
    assert noted_steps(world) == [100, 112, 124]
    assert [incident.notify for incident in world.incidents] == [True, True, True]


def test_a_leader_that_did_not_see_the_first_losses_names_the_first_step() -> None:
    world = running()
    train_to(world, 100)
    report(world, *[NAN] * 6)
    world.lose_leader()
    report(world, *[NAN] * 5)
    (incident,) = [incident for incident in world.incidents if incident.notify]
    assert (incident.verdict.step, incident.verdict.message) == (100, "loss is not finite since step 100")


def test_an_origin_that_is_seen_later_does_not_move_the_step_that_is_named() -> None:
    world = running()
    train_to(world, 100)
    report(world, NAN)
    report(world, NAN, nonfinite=[store.NonFinite(rank=0, quantity="gradient", parameter="up.weight")])
    report(world, *[NAN] * BUDGET)
    assert (noted_steps(world), [incident.notify for incident in world.incidents]) == ([100, 101], [True, False])


def test_an_episode_in_steps_that_a_restart_has_undone_is_not_noted_twice() -> None:
    world = running()
    train_to(world, 10)
    world.rank(0).snapshots[:] = [9]
    train_to(world, 100)
    world.end(0, signal=9)
    world.until("starting")
    assert world.rank(0).progress.step == 10
    report(world, *[NAN] * (BUDGET + 1))
    found = [incident for incident in world.incidents if incident.loss_tier == store.LOSS_TIER_NON_FINITE]
    assert [(incident.verdict.step, incident.notify) for incident in found] == [(10, True)]


@pytest.mark.parametrize("rule", [("notify", BUDGET), ("note", 0)])
def test_a_loss_that_is_bad_in_every_other_step_makes_few_incidents(rule: tuple[str, int]) -> None:
    world = running({"non_finite": rule})
    report(world, *[NAN, 2.0] * 500)
    assert 2 <= len(world.incidents) <= 6
    assert marked(world) == []


@pytest.mark.parametrize("numbers", [{"overflow": True}, {}])
def test_skipped_steps_and_steps_without_a_loss_neither_count_nor_end_a_row(numbers: dict[str, Any]) -> None:
    world = running()
    for _ in range(BUDGET):
        report(world, NAN)
        report(world, NAN if numbers else None, **numbers)
    assert (world.state.record.loss_counts.nonfinite, marked(world)) == (BUDGET, [])
    report(world, NAN)
    assert marked(world) == ["non_finite"]


@pytest.mark.parametrize("quantity", ["validation_loss", "grad_norm"])
def test_another_number_that_is_not_finite_is_noted_only(quantity: str) -> None:
    world = running({"non_finite": ("stop", 0)})
    report(world, *[2.0] * 20, nonfinite=[store.NonFinite(rank=0, quantity=quantity)])
    assert [incident.verdict.kind for incident in world.incidents] == [store.VERDICT_KIND_NON_FINITE]
    assert (world.incidents[0].notify, world.incidents[0].loss_tier) == (False, store.LOSS_TIER_UNSPECIFIED)
    assert world.phase == "running"


def test_one_rank_whose_loss_is_not_finite_is_enough() -> None:
    summary = store.StepSummary(loss_sum=NAN, loss_count=4, nonfinite=[store.NonFinite(rank=2, quantity="loss")])
    assert is_finite_loss(summary) is False
    assert is_finite_loss(store.StepSummary(loss_sum=4.0, loss_count=2)) is True
    assert is_finite_loss(store.StepSummary()) is None


def test_a_stop_ends_the_run_without_a_checkpoint_and_names_the_way_back() -> None:
    world = running({"non_finite": ("stop", 3)})
    report(world, 2.0, 2.5)
    last = world.rank(0).progress.step - 1
    checkpoints = [last - 2, last, last + 2]
    world.node_states["node0"].checkpoints[:] = checkpoints
    world.rank(0).snapshots[:] = [last + 3]
    report(world, *[NAN] * 3)
    assert world.phase == "running"
    report(world, NAN)
    assert world.phase == "failed"
    finish = world.sent("finish")[0].finish
    assert not finish.succeeded
    assert finish.outcome == (
        f'stopped at step {last + 4} because of [loss] non_finite = "stop": 4 losses in a row that are not finite, of'
        f" which 3 are tolerated; the loss is not finite since step {last + 1}; the last finite loss was 2.5 at step"
        f" {last}; checkpoints of step {last}"
        f" or later may hold the bad state: start again with --continue-from {last - 2}, or a newer checkpoint from"
        f" before step {last}"
    )
    assert (finish.bad_loss.from_step, finish.bad_loss.reason) == (last, finish.outcome)
    assert not world.sent("persist_snapshot"), "its newest snapshot holds the bad state"
    assert [command.keep_checkpoint.step for command in world.sent("keep_checkpoint")] == [last - 2]
    assert world.state.record.loss_counts.stopped_by == store.LOSS_TIER_NON_FINITE
    generations = world.state.record.generation
    world.stand(30.0)
    assert (world.phase, world.state.record.generation) == ("failed", generations), "nothing starts it again"


def test_a_stop_in_mode_observe_says_that_it_does_nothing() -> None:
    world = running({"non_finite": ("stop", 0)}, mode=store.MODE_OBSERVE)
    report(world, NAN, NAN)
    assert (world.phase, marked(world)) == ("running", ["non_finite"])
    assert world.incidents[0].actions[-1].what == "the run is not stopped: its mode is observe"


def test_a_stop_while_a_restart_is_on_its_way_ends_the_run() -> None:
    world = running({"non_finite": ("stop", 0)})
    world.end(0, signal=9)
    world.obeys = False
    world.until("gathering")
    summary = store.StepSummary(step=3, generation=world.state.record.generation, loss_sum=NAN, loss_count=1)
    summary.nonfinite.add(rank=0, quantity="loss")
    send_event(world, generation=summary.generation, step_summary=summary)
    assert world.phase == "failed"
    assert not world.state.record.open_incident


def test_a_row_goes_on_over_a_restart_and_a_change_of_the_leader() -> None:
    world = running()
    report(world, *[NAN] * 6)
    world.end(0, signal=9)
    world.until("starting")
    world.lose_leader()
    report(world, *[NAN] * 4)
    assert marked(world) == []
    report(world, NAN)
    assert marked(world) == ["non_finite"]


def spike(world: World) -> None:
    world.train(40)
    world.train(3, loss=50.0)
    world.train(20)


def test_spikes_are_counted_over_restarts_and_the_budget_comes_before_the_action() -> None:
    world = running({"spike": ("stop", 2)})
    spike(world)
    restart(world)
    world.train(world.state.record.newest_step - world.rank(0).progress.step + 1)
    spike(world)
    assert (world.state.record.loss_counts.spikes, marked(world), world.phase) == (2, [], "running")
    spike(world)
    assert (marked(world), world.phase) == (["spike"], "failed")
    assert 'because of [loss] spike = "stop": 3 spikes, of which 2 are tolerated' in world.state.record.outcome


def test_a_spike_in_steps_that_are_done_again_counts_once() -> None:
    world = running()
    world.train(60)
    world.rank(0).snapshots[:] = [10]
    world.train(1, snapshot=False)
    world.train(3, loss=50.0, snapshot=False)
    world.train(20, snapshot=False)
    assert world.state.record.loss_counts.spikes == 1
    restart(world)
    assert world.rank(0).progress.step == 12
    incidents = len(world.incidents)
    world.train(52, snapshot=False)
    world.train(3, loss=50.0, snapshot=False)
    assert len(world.incidents) == incidents + 1, "it is found again"
    assert (world.state.record.loss_counts.spikes, marked(world)) == (1, ["spike"])


def test_a_blip_is_an_incident_only_if_the_policy_wants_one() -> None:
    for action, expected in (("note", []), ("notify", ["blip", "blip"])):
        world = running({"blip": (action, 1), "spike": ("note", 0)})
        for _ in range(3):
            world.train(60)
            world.train(1, loss=50.0)
        assert (world.state.record.loss_counts.blips, marked(world)) == (3, expected)
        assert len(world.incidents) == len(expected)


def test_divergence_is_stopped_after_its_budget_in_losses() -> None:
    world = running({"divergence": ("stop", 20), "spike": ("note", 0)})
    world.train(200)
    world.train(200, loss=4.0)
    assert world.phase == "failed"
    assert 'because of [loss] divergence = "stop": 21 losses in a row since it was found' in world.state.record.outcome


def test_a_divergence_that_comes_back_within_its_budget_is_not_answered() -> None:
    world = running({"divergence": ("stop", 60), "spike": ("note", 0), "slow_rise": ("note", 0)})
    world.train(200)
    world.train(170, loss=4.0)
    assert world.state.record.loss_counts.diverged > 0
    world.train(100)
    assert (world.state.record.loss_counts.diverged, marked(world), world.phase) == (0, [], "running")


def test_a_jump_of_the_learning_rate_ends_the_count_of_a_divergence() -> None:
    world = running({"divergence": ("stop", 60), "spike": ("note", 0), "slow_rise": ("note", 0)})
    report(world, *[2.0] * 200, learning_rate=0.1)
    report(world, *[4.0] * 160, learning_rate=0.1)
    assert world.state.record.loss_counts.diverged > 0
    report(world, *[4.0] * 90, learning_rate=1.0)
    assert (world.state.record.loss_counts.diverged, world.phase) == (0, "running")


def test_a_finished_run_whose_loss_is_not_finite_does_not_succeed_unless_that_is_only_noted() -> None:
    for action, succeeded in (("notify", False), ("note", True)):
        world = running({"non_finite": (action, 10)})
        report(world, NAN)
        world.end(0, code=0)
        world.tick()
        assert world.phase == "finished"
        assert world.sent("finish")[0].finish.succeeded is succeeded


@settings(max_examples=60, deadline=None)
@given(losses=st.lists(st.sampled_from([2.0, NAN, None]), max_size=40), budget=st.integers(0, 6))
def test_a_run_stops_at_the_loss_that_is_over_the_budget_and_at_no_other(
    losses: list[float | None], budget: int
) -> None:
    world = running({"non_finite": ("stop", budget)})
    row, stops = 0, False
    for loss in losses:
        report(world, loss)
        row = row if loss is None else 0 if math.isfinite(loss) else row + 1
        stops = row > budget
        assert (world.phase == "failed") is stops
        if stops:
            break


def test_what_the_spec_leaves_out_is_the_default() -> None:
    spec = store.RunSpec()
    assert [rule_of(spec, tier) for tier in TIER_WORDS] == list(DEFAULTS.values())
    spec.loss_policy.spike.budget = 4
    assert rule_of(spec, store.LOSS_TIER_SPIKE) == (store.LOSS_ACTION_NOTIFY, 4)


@pytest.mark.parametrize(("field", "value"), [("action", 9), ("budget", 2**31)])
def test_a_policy_that_no_version_knows_is_refused(field: str, value: int) -> None:
    world = World()
    check_spec(world.spec, "r")
    setattr(world.spec.loss_policy.spike, field, value)
    with pytest.raises(RefusedError, match=f"loss_policy.spike.{field}"):
        check_spec(world.spec, "r")


def test_a_checkpoint_that_is_still_being_written_is_not_denied() -> None:
    world = running({"non_finite": ("stop", 3)})
    report(world, 2.0, 2.5)
    last = world.rank(0).progress.step - 1
    report(world, *[NAN] * 4)
    outcome = world.state.record.outcome
    assert (
        f"checkpoints of step {last} or later may hold the bad state, and none from before it is committed" in outcome
    )
    assert "if one is by now, start again with --continue-from and its step, else with --from-scratch" in outcome


def test_a_start_without_any_finite_loss_calls_no_checkpoint_good() -> None:
    world = running({"non_finite": ("stop", 3)})
    fresh = store.CoordinatorState()
    fresh.CopyFrom(world.state.record)
    fresh.ClearField("loss_counts")
    fresh.ClearField("proven")
    world.state = replace(world.state, record=fresh, detectors=registry.fresh())
    world.node_states["node0"].checkpoints[:] = [0]
    report(world, *[NAN] * 4)
    assert world.phase == "failed"
    assert "no loss was finite; so the state that it began with may be bad already" in world.state.record.outcome
    assert not world.sent("keep_checkpoint"), "the state that it began with may be bad"


def test_a_loss_that_is_not_finite_asks_for_attention_until_it_is_finite_again() -> None:
    world = running()
    report(world, NAN)
    (incident,) = world.incidents
    late = world.now + 3 * RECENT_S
    assert urgent_incident(world.state, late) == incident and is_bad(world.state)
    report(world, 2.0)
    assert urgent_incident(world.state, late) is None and not is_bad(world.state)


def test_an_acknowledged_incident_asks_for_no_attention_until_the_next_one() -> None:
    world = running()
    report(world, NAN)
    world.tick(AcknowledgeRequest("9999-unknown"))
    assert is_bad(world.state)
    world.tick(AcknowledgeRequest(world.incidents[0].id))
    (incident,) = world.incidents
    assert (incident.acknowledged_unix_s, incident.actions[-1].what) == (world.now, "acknowledged by an operator")
    assert urgent_incident(world.state, world.now) is None and not is_bad(world.state)
    report(world, NAN, *[2.0] * 20, NAN)
    assert urgent_incident(world.state, world.now) == world.incidents[1] and is_bad(world.state)


def test_the_message_names_the_newest_proven_checkpoint_also_if_it_is_committed_later() -> None:
    world = running()
    train_to(world, 20)
    world.node_states["node0"].checkpoints[:] = [8, 12, 19]
    report(world, NAN)
    assert messages(world) == ["loss is not finite since step 20; the newest proven checkpoint is that of step 12"]
    world.node_states["node0"].checkpoints[:] = [8, 12, 16, 19]
    report(world, NAN)
    assert messages(world)[0].endswith("; the newest proven checkpoint is that of step 16")
    assert next_line(world.incidents[0], world.spec) == (
        "If the loss does not come back, stop the run, and start it again with --continue-from 16."
    )


def test_without_a_proven_checkpoint_the_message_names_none() -> None:
    world = running()
    train_to(world, 20)
    world.node_states["node0"].checkpoints[:] = [19]
    report(world, NAN)
    assert messages(world) == ["loss is not finite since step 20"]

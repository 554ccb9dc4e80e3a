"""The merge of the nodes' summaries of a step, and its effects: telemetry, totals, incidents."""

import math
from typing import Any

from holdfast_core.detectors.numbers import missing_loss
from holdfast_core.detectors.numbers.non_finite import LIMIT_STEPS
from holdfast_core.naming import kind_name
from holdfast_core.step_numbers import merge
from holdfast_proto.v1 import session_pb2 as session
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_OPTIMIZER
from tests.core.runs import running
from tests.support.core_world import World


def report(world: World, step: int, node: str = "node0", **numbers: Any) -> None:
    """Let a node report a step of the present generation."""
    generation = world.state.record.generation
    summary = store.StepSummary(step=step, generation=generation, duration_s=0.3, **numbers)
    world.events.append(store.Event(node=node, generation=generation, step_summary=summary))


def kinds(world: World) -> list[str]:
    return [kind_name(incident.verdict.kind) for incident in world.incidents]


def samples(*fingerprints: bytes) -> list[store.SamplesUsed]:
    return [store.SamplesUsed(dp=dp, rank=dp, fingerprint=fingerprint) for dp, fingerprint in enumerate(fingerprints)]


def test_shares_add_up_the_slowest_counts_and_findings_are_kept() -> None:
    one = store.StepSummary(
        step=7,
        loss_sum=4.0,
        loss_count=2,
        tokens=100,
        dropped_tokens=3,
        duration_s=0.5,
        ended_unix_s=9.0,
        overflow=True,
        phase_s={PHASE_DATA: 0.4, PHASE_OPTIMIZER: 0.1},
        nonfinite=[store.NonFinite(rank=1, quantity="grad_norm")],
        samples=[store.SamplesUsed(dp=0, fingerprint=b"first000")],
    )
    other = store.StepSummary(
        step=7,
        loss_sum=3.0,
        loss_count=1,
        tokens=50,
        dropped_tokens=2,
        duration_s=0.3,
        ended_unix_s=10.0,
        grad_norm=1.5,
        phase_s={PHASE_DATA: 0.2, PHASE_OPTIMIZER: 0.3},
        samples=[store.SamplesUsed(dp=1, rank=4, fingerprint=b"second00")],
    )
    for merged in (merge(one, other), merge(other, one)):
        assert (merged.step, merged.loss_sum, merged.loss_count) == (7, 7.0, 3)
        assert (merged.tokens, merged.dropped_tokens, merged.duration_s, merged.ended_unix_s) == (150, 5, 0.5, 10.0)
        assert (merged.overflow, merged.grad_norm) == (True, 1.5)
        assert dict(merged.phase_s) == {PHASE_DATA: 0.4, PHASE_OPTIMIZER: 0.3}
        assert ([bad.rank for bad in merged.nonfinite], sorted(use.dp for use in merged.samples)) == ([1], [0, 1])


def test_means_are_over_the_ranks_of_all_nodes() -> None:
    one = store.StepSummary(mfu=store.Mean(sum=0.9, count=3), balance_loss=store.Mean(sum=0.5, count=1))
    other = store.StepSummary(mfu=store.Mean(sum=0.5, count=1))
    for merged in (merge(one, other), merge(other, one)):
        assert (merged.mfu, merged.balance_loss) == (store.Mean(sum=1.4, count=4), store.Mean(sum=0.5, count=1))
        assert not merged.HasField("pipeline_bubble")


def test_ranks_of_all_nodes_that_hold_a_part_with_one_hash_are_put_together() -> None:
    def side(part: str, value: int, *ranks: int) -> store.ReplicaHashes:
        return store.ReplicaHashes(part=part, hash=value, ranks=ranks)

    ours = [side("a", 1, 0, 1), side("b", 2, 0)]
    theirs = [side("a", 1, 2), side("a", 9, 3), side("b", 2, 3)]
    joined = [side("a", 1, 0, 1, 2), side("b", 2, 0, 3), side("a", 9, 3)]
    one, other = store.StepSummary(replicas=ours, plain=ours), store.StepSummary(replicas=theirs, plain=theirs)
    merged = merge(one, other)
    assert [list(merged.replicas), list(merged.plain)] == [joined, joined]
    assert list(one.replicas) == ours


def test_what_a_replay_showed_on_all_nodes_is_put_together() -> None:
    differs = store.RankReplay(rank=5, part="all_reduce 1", vote=session.REPLAY_VOTE_FIRST)
    one = store.StepSummary(replay=store.ReplaySummary(duration_s=0.5, refusal="left"))
    other = store.StepSummary(replay=store.ReplaySummary(duration_s=0.25, differences=[differs]))
    for merged in (merge(one, other), merge(other, one)):
        assert merged.replay == store.ReplaySummary(duration_s=0.5, refusal="left", differences=[differs])
    assert not merge(store.StepSummary(), store.StepSummary()).HasField("replay")


def test_the_newest_numbers_of_all_nodes_are_shown() -> None:
    world = running(nodes=2, steps=3)
    report(world, 3, "node0", update_norm=0.01, loss_scale=1024.0, mfu=store.Mean(sum=0.8, count=2), dropped_tokens=5)
    report(world, 3, "node1", mfu=store.Mean(sum=0.1, count=1), pipeline_bubble=store.Mean(sum=0.5, count=2))
    world.tick()
    shown = world.state.telemetry
    assert (shown.update_norm, shown.loss_scale, shown.pipeline_bubble, shown.balance_loss) == (
        0.01,
        1024.0,
        0.25,
        None,
    )
    assert shown.mfu is not None and math.isclose(shown.mfu, 0.3)
    assert world.state.totals.dropped_tokens == 5


def test_an_overflow_loop_is_reported_once_with_its_scale_and_stops_nothing() -> None:
    world = running(steps=3)
    for step in range(3, 3 + 3 * LIMIT_STEPS):
        report(world, step, overflow=step != 3 + LIMIT_STEPS, loss_scale=0.25, loss_sum=2.0, loss_count=1)
    world.tick()
    assert kinds(world) == ["overflow_loop"]
    assert world.incidents[0].verdict.message == (
        f"the last {LIMIT_STEPS} steps, up to step {2 + LIMIT_STEPS}, were all skipped at a loss scale of 0.25: "
        "gradients are not finite"
    )
    assert (world.state.totals.skipped_steps, world.phase) == (3 * LIMIT_STEPS - 1, "running")
    assert world.sent("stop") == []


def test_a_norm_that_is_not_finite_is_reported_unless_its_step_was_skipped() -> None:
    world = running(nodes=2, steps=3)
    infinite = [store.NonFinite(rank=1, quantity="grad_norm")]
    report(world, 3, "node0", nonfinite=infinite)
    report(world, 3, "node1", overflow=True)
    world.tick()
    assert (kinds(world), world.state.totals.nonfinite) == ([], {})
    for node in ("node0", "node1"):
        report(world, 4, node, nonfinite=infinite if node == "node0" else [])
    world.tick()
    assert (kinds(world), world.state.totals.nonfinite) == (["non_finite"], {"grad_norm": 1})


def test_a_loss_that_is_not_finite_is_reported_even_if_its_step_was_skipped() -> None:
    world = running(steps=3)
    report(world, 3, overflow=True, nonfinite=[store.NonFinite(rank=2, quantity="loss")])
    world.tick()
    assert kinds(world) == ["non_finite"]


def test_the_incident_of_a_missing_loss_is_resolved_when_a_loss_comes_again() -> None:
    world = running(steps=3)
    for step in range(3, 10 + missing_loss.LIMIT_STEPS):
        report(world, step, grad_norm=0.5, loss_sum=2.0, loss_count=int(step < 10))
    world.tick()
    (incident,) = world.incidents
    assert (kind_name(incident.verdict.kind), incident.state) == ("missing_loss", store.INCIDENT_STATE_NOTED)
    report(world, 10 + missing_loss.LIMIT_STEPS, grad_norm=0.5, loss_sum=2.0, loss_count=1)
    world.tick()
    (incident,) = world.incidents
    assert incident.state == store.INCIDENT_STATE_RESOLVED
    assert incident.actions[-1].what == f"a loss is reported again at step {10 + missing_loss.LIMIT_STEPS}"


def test_data_parallel_ranks_of_two_nodes_with_the_same_samples_are_named() -> None:
    world = running(nodes=2, steps=3)
    report(world, 3, "node0", samples=[store.SamplesUsed(dp=0, rank=0, fingerprint=b"same0000")])
    report(world, 3, "node1", samples=[store.SamplesUsed(dp=1, rank=4, fingerprint=b"same0000")])
    world.tick()
    (incident,) = world.incidents
    assert kind_name(incident.verdict.kind) == "duplicate_samples"
    assert incident.verdict.message == "data-parallel indices 0, 1 trained on the same samples in step 3"
    assert (list(incident.verdict.culprits), incident.state) == ([0, 4], store.INCIDENT_STATE_NOTED)


def test_duplicate_samples_are_reported_once_and_counted_at_every_step() -> None:
    world = running(steps=3)
    for step in (3, 4, 5):
        report(world, step, samples=samples(b"%08d" % step, b"%08d" % step))
    world.tick()
    assert (kinds(world), world.state.totals.anomalies["duplicate_samples"]) == (["duplicate_samples"], 3)
    assert world.phase == "running"


def lose_a_rank(world: World) -> None:
    world.end(1, signal=9)
    world.until("starting")


def test_a_restart_without_the_data_position_is_reported() -> None:
    world = World()
    world.until("starting")
    for step in range(3):
        report(world, step, samples=samples(b"%08d" % step))
        world.train(1)
    lose_a_rank(world)
    resumed = world.state.record.resumed_step
    assert resumed == 2
    report(world, resumed + 1, samples=samples(b"%08d" % 0))
    world.tick()
    assert kinds(world) == ["dead_rank", "duplicate_samples"]
    assert world.incidents[-1].verdict.message == "step 3 trained again on samples of step 0"

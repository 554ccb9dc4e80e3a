"""The merge of the nodes' summaries of a step."""

from holdfast_daemon.core.step_summary import merge
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_OPTIMIZER


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
        assert (merged.tokens, merged.dropped_tokens) == (150, 5)
        assert (merged.duration_s, merged.ended_unix_s) == (0.5, 10.0)
        assert (merged.overflow, merged.grad_norm) == (True, 1.5)
        assert dict(merged.phase_s) == {PHASE_DATA: 0.4, PHASE_OPTIMIZER: 0.3}
        assert [bad.rank for bad in merged.nonfinite] == [1]
        assert sorted(use.dp for use in merged.samples) == [0, 1]


def test_means_are_over_the_ranks_of_all_nodes() -> None:
    one = store.StepSummary(mfu=store.Mean(sum=0.9, count=3), balance_loss=store.Mean(sum=0.5, count=1))
    other = store.StepSummary(mfu=store.Mean(sum=0.5, count=1))
    for merged in (merge(one, other), merge(other, one)):
        assert merged.mfu == store.Mean(sum=1.4, count=4)
        assert merged.balance_loss == store.Mean(sum=0.5, count=1)
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

import math

import pytest

from holdfast_agent.reports.summaries import LoggedNames, StepSummaries
from holdfast_proto.limits import MOST_LOGGED_NAMES
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_DATA, PHASE_OPTIMIZER, LoggedNumber
from holdfast_proto.v1.session_pb2 import (
    REPLAY_VOTE_SECOND,
    BadGradient,
    NonFiniteOrigin,
    ReplayCheck,
    ReplicaCoverage,
    ReplicaHash,
    StepRecord,
)


def summed_up(*records: StepRecord, first_rank: int = 0, generation: int = 1) -> store.StepSummary:
    """Return the summary of a step that these ranks report, in this order."""
    summaries = StepSummaries(generation=generation, ranks=len(records))
    *earlier, newest = [summaries.add(rank, record) for rank, record in enumerate(records, first_rank)]
    assert earlier == [[]] * (len(records) - 1)
    (summary,) = newest
    return summary


def test_a_step_is_summed_up_once_all_ranks_have_reported_it() -> None:
    first = StepRecord(
        step=5, loss=2.0, tokens=100, duration_s=0.5, ended_unix_s=11.0, phase_s={PHASE_DATA: 0.1, PHASE_OPTIMIZER: 0.3}
    )
    second = StepRecord(
        step=5, loss=4.0, tokens=50, duration_s=0.25, ended_unix_s=12.0, grad_norm=1.5, phase_s={PHASE_DATA: 0.2}
    )
    assert summed_up(first, second, generation=3) == store.StepSummary(
        step=5, generation=3, loss_sum=6.0, loss_count=2, grad_norm=1.5, tokens=150, duration_s=0.5,
        ended_unix_s=12.0, phase_s={PHASE_DATA: 0.2, PHASE_OPTIMIZER: 0.3},
    )  # fmt: skip


def test_what_a_rank_has_a_share_in_is_summed_averaged_or_taken_as_it_is() -> None:
    summary = summed_up(
        StepRecord(step=0, mfu=0.5, pipeline_bubble=0.25, dropped_tokens=3, overflow=True),
        StepRecord(step=0, mfu=0.25, balance_loss=1.5, dropped_tokens=4, update_norm=0.125),
        StepRecord(step=0, loss_scale=1024.0),
    )
    assert summary.mfu == store.Mean(sum=0.75, count=2)
    assert summary.pipeline_bubble == store.Mean(sum=0.25, count=1)
    assert summary.balance_loss == store.Mean(sum=1.5, count=1)
    assert (summary.dropped_tokens, summary.overflow) == (7, True)
    assert (summary.update_norm, summary.loss_scale) == (0.125, 1024.0)


def test_samples_are_reported_once_per_data_parallel_index() -> None:
    summaries = StepSummaries(generation=1, ranks=5)
    ranks = [(0, b"first000"), (0, b"first000"), (1, b"second00"), (2, b"first000"), (3, b"")]
    added = [summaries.add(rank, StepRecord(step=0, samples=print_), dp=dp) for rank, (dp, print_) in enumerate(ranks)]
    assert list(added[-1][0].samples) == [
        store.SamplesUsed(dp=0, rank=0, fingerprint=b"first000"),
        store.SamplesUsed(dp=1, rank=2, fingerprint=b"second00"),
        store.SamplesUsed(dp=2, rank=3, fingerprint=b"first000"),
    ]


def test_a_rank_without_a_loss_does_not_count_as_zero() -> None:
    summary = summed_up(StepRecord(step=0, loss=3.0), StepRecord(step=0))
    assert (summary.loss_sum, summary.loss_count) == (3.0, 1)


@pytest.mark.parametrize("quantity", ["loss", "validation_loss", "grad_norm", "update_norm", "balance_loss"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_reported_with_its_rank(quantity: str, number: float) -> None:
    record = StepRecord(step=0)
    setattr(record, quantity, number)
    summary = summed_up(StepRecord(step=0, loss=1.0), record)
    assert list(summary.nonfinite) == [store.NonFinite(rank=1, quantity=quantity)]


def test_the_module_in_which_a_gradient_went_bad_is_reported_with_its_rank_and_time() -> None:
    origin = NonFiniteOrigin(module="layers.2", unix_s=8.5)
    summary = summed_up(StepRecord(step=0, grad_norm=math.nan), StepRecord(step=0, nonfinite_origin=origin))
    assert list(summary.nonfinite) == [
        store.NonFinite(rank=0, quantity="grad_norm"),
        store.NonFinite(rank=1, quantity="gradient", module="layers.2", unix_s=8.5),
    ]


def test_ranks_that_hold_a_part_with_the_same_hash_are_reported_together() -> None:
    up, norm, other = (ReplicaHash(part=part, hash=value) for part, value in (("up", 7), ("norm", 7), ("norm", 8)))
    held = [[up, norm], [up, other], [norm]]
    summary = summed_up(*(StepRecord(step=0, replicas=replicas) for replicas in held), first_rank=4)
    assert list(summary.replicas) == [
        store.ReplicaHashes(part="up", hash=7, ranks=[4, 5]),
        store.ReplicaHashes(part="norm", hash=7, ranks=[4, 6]),
        store.ReplicaHashes(part="norm", hash=8, ranks=[5]),
    ]


def test_plain_parameters_are_reported_like_replicas_and_their_coverage_by_rank() -> None:
    plain = [ReplicaHash(part="", hash=7)]
    coverage = ReplicaCoverage(replica_bytes=1, plain_bytes=2, parameter_bytes=4)
    summary = summed_up(
        StepRecord(step=0, plain=plain, coverage=coverage), StepRecord(step=0, plain=plain), first_rank=4
    )
    assert list(summary.plain) == [store.ReplicaHashes(part="", hash=7, ranks=[4, 5])]
    assert list(summary.replicas) == []
    assert list(summary.coverage) == [store.RankCoverage(rank=4, replica_bytes=1, plain_bytes=2, parameter_bytes=4)]


def test_of_a_replay_the_slowest_rank_and_those_that_computed_something_differently_are_reported() -> None:
    differs = ReplayCheck(duration_s=0.5, part="all_reduce 1 of ranks 0-3", vote=REPLAY_VOTE_SECOND)
    checks = [ReplayCheck(duration_s=0.25), differs, ReplayCheck(duration_s=0.125)]
    assert summed_up(*(StepRecord(step=0, replay=check) for check in checks), first_rank=4).replay == (
        store.ReplaySummary(
            duration_s=0.5, differences=[store.RankReplay(rank=5, part=differs.part, vote=REPLAY_VOTE_SECOND)]
        )
    )
    refused = StepRecord(step=0, replay=ReplayCheck(refusal="gradients are left"))
    other = StepRecord(step=0, replay=ReplayCheck(refusal="another reason"))
    assert summed_up(refused, StepRecord(step=0), other).replay == store.ReplaySummary(refusal="gradients are left")
    assert not summed_up(StepRecord(step=0)).HasField("replay")


def test_a_step_that_a_rank_never_reports_is_closed_before_the_next_one() -> None:
    summaries = StepSummaries(generation=1, ranks=2)
    closed: list[int] = []
    for step in range(4):
        for rank in range(2):
            if (rank, step) != (1, 1):
                closed += [summary.step for summary in summaries.add(rank, StepRecord(step=step))]
    assert closed == [0, 1, 2, 3]


def test_steps_may_be_open_side_by_side() -> None:
    summaries = StepSummaries(generation=1, ranks=2)
    assert summaries.add(0, StepRecord(step=0)) == []
    assert summaries.add(0, StepRecord(step=1)) == []
    assert [summary.step for summary in summaries.add(1, StepRecord(step=0))] == [0]
    assert [summary.step for summary in summaries.add(1, StepRecord(step=1))] == [1]


def test_a_bad_gradient_of_the_ranks_own_is_reported_as_such() -> None:
    bad = BadGradient(parameter="model.up.weight", own=True, unix_s=8.5)
    summary = summed_up(StepRecord(step=0, bad_gradient=bad))
    assert list(summary.nonfinite) == [
        store.NonFinite(rank=0, quantity="gradient", parameter="model.up.weight", unix_s=8.5)
    ]


def test_a_bad_gradient_that_may_be_a_sum_over_ranks_only_completes_what_the_rank_reports() -> None:
    bad = BadGradient(parameter="model.up.weight", unix_s=8.5)
    summary = summed_up(
        StepRecord(step=0, grad_norm=math.nan), StepRecord(step=0, grad_norm=math.nan, bad_gradient=bad)
    )
    assert list(summary.nonfinite) == [
        store.NonFinite(rank=0, quantity="grad_norm"),
        store.NonFinite(rank=1, quantity="grad_norm", parameter="model.up.weight"),
    ]


def counted(names: LoggedNames, rank: int, *logged: str) -> list[tuple[str, int]]:
    return [(number.name, number.rank) for number in names.of(rank, [LoggedNumber(name=name) for name in logged])]


def test_of_several_ranks_that_log_a_name_the_lowest_counts() -> None:
    names = LoggedNames()
    assert counted(names, 3, "loss") == [("loss", 3)]
    assert counted(names, 2, "loss", "only/2") == [("loss", 2), ("only/2", 2)]
    assert counted(names, 3, "loss", "only/3") == [("only/3", 3)]
    assert counted(names, 2, "loss") == [("loss", 2)]


def test_beyond_the_limit_a_new_name_is_left_out_and_known_ones_go_on() -> None:
    names = LoggedNames()
    first = [f"name-{index}" for index in range(MOST_LOGGED_NAMES)]
    assert len(counted(names, 0, *first)) == MOST_LOGGED_NAMES
    assert counted(names, 1, "more") == []
    assert counted(names, 0, "more", "name-5") == [("name-5", 0)]

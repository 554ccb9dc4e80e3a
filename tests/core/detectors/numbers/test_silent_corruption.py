"""Replicas that differ, and ranks that compute a step differently when it is replayed."""

import pytest

from holdfast_core.detectors.numbers.silent_corruption import UNDECIDED_STEPS, SilentCorruption
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import (
    REPLAY_VOTE_FIRST,
    REPLAY_VOTE_NEITHER,
    REPLAY_VOTE_NOT_TAKEN,
    REPLAY_VOTE_SECOND,
    REPLAY_VOTE_UNCLEAR,
    ReplayVote,
)
from tests.support.steps import show, view

NORM, UP = "model.norm.weight[0:4096]", "model.up.weight[0:4096]"


def side(part: str, value: int, *ranks: int) -> store.ReplicaHashes:
    return store.ReplicaHashes(part=part, hash=value, ranks=ranks)


def verdicts_on(*replicas: store.ReplicaHashes, steps: int = 1) -> list[store.Verdict]:
    """Return the verdicts on replicas that report the same hashes in each of some steps."""
    return show(SilentCorruption(), [store.StepSummary(step=7 + n, replicas=replicas) for n in range(steps)])[1]


def test_the_rank_outside_of_the_majority_is_named() -> None:
    (verdict,) = verdicts_on(side(NORM, 1, 0, 2, 4), side(NORM, 2, 6), side(UP, 3, 0, 2, 4, 6))
    assert (list(verdict.culprits), verdict.confidence_ratio, verdict.step) == ([6], 1.0, 7)
    assert verdict.message == (f"rank 6 holds other values than the replicas' majority of {NORM} at the end of step 7")


def test_of_two_replicas_both_are_named_and_not_trusted() -> None:
    (verdict,) = verdicts_on(side(NORM, 1, 5), side(NORM, 2, 4), steps=1 + UNDECIDED_STEPS)
    assert (verdict.step, list(verdict.culprits), verdict.confidence_ratio) == (7, [4, 5], 0.5)
    assert "it is not known which are wrong" in verdict.message


def test_half_is_no_majority() -> None:
    (verdict,) = verdicts_on(side(NORM, 1, 0, 1), side(NORM, 2, 2), side(NORM, 3, 3), steps=1 + UNDECIDED_STEPS)
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([0, 1, 2, 3], 0.5)


def test_what_two_cannot_decide_is_decided_when_all_look() -> None:
    two = store.StepSummary(step=7, replicas=[side(NORM, 1, 0), side(NORM, 2, 3)])
    all_four = store.StepSummary(step=8, replicas=[side(NORM, 1, 0, 1, 2), side(NORM, 2, 3)])
    detector, verdicts = show(SilentCorruption(), [two])
    assert verdicts == []
    (finding,) = detector.see_step(view(all_four)).findings
    assert (list(finding.verdict.culprits), finding.verdict.step, finding.proven_step) == ([3], 8, 7)


def test_a_part_with_a_majority_decides_for_those_without() -> None:
    (verdict,) = verdicts_on(side(UP, 1, 3), side(UP, 2, 6), side(NORM, 1, 0, 2, 4), side(NORM, 2, 6))
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([6], 1.0)


def test_the_rank_that_is_odd_in_most_parts_comes_first() -> None:
    (verdict,) = verdicts_on(
        side(NORM, 1, 0, 1, 2), side(NORM, 2, 3), side(UP, 1, 0, 1, 4, 5, 6), side(UP, 2, 3), side(UP, 3, 2)
    )
    assert list(verdict.culprits) == [3, 2]
    assert f"{NORM} and 1 more" in verdict.message


def test_the_checkpoint_before_the_first_difference_is_the_one_to_keep() -> None:
    summary = store.StepSummary(step=7, replicas=[side(NORM, 1, 0, 2), side(NORM, 2, 1)])
    (finding,) = SilentCorruption().see_step(view(summary)).findings
    assert finding.proven_step == 7


def test_equal_replicas_are_no_finding_whichever_rank_reports_them() -> None:
    # Ranks 2 and 3 report no hash of the first part, so nothing is compared there.
    assert verdicts_on(side(NORM, 1, 0, 1), side(UP, 2, 0, 1, 2, 3)) == []


def test_a_generation_is_reported_once() -> None:
    steps = [store.StepSummary(step=step, replicas=[side(NORM, 1, 0, 2), side(NORM, 2, 1)]) for step in range(3)]
    detector, verdicts = show(SilentCorruption(), steps)
    assert [verdict.step for verdict in verdicts] == [0]
    assert len(show(detector.restarted(2), steps)[1]) == 1


def replayed(step: int, votes: dict[int, ReplayVote], *, refusal: str = "") -> store.StepSummary:
    """Return a replayed step, with the votes of the ranks that computed something differently."""
    differences = [store.RankReplay(rank=rank, part=f"all_reduce {rank}", vote=vote) for rank, vote in votes.items()]
    return store.StepSummary(step=step, replay=store.ReplaySummary(refusal=refusal, differences=differences))


@pytest.mark.parametrize(
    ("votes", "is_decided", "proven_step"),
    [
        ({6: REPLAY_VOTE_FIRST, 3: REPLAY_VOTE_SECOND}, True, None),
        ({6: REPLAY_VOTE_NEITHER, 3: REPLAY_VOTE_SECOND}, False, 7),
        ({6: REPLAY_VOTE_NOT_TAKEN, 3: REPLAY_VOTE_NOT_TAKEN}, False, 6),
        ({6: REPLAY_VOTE_UNCLEAR, 3: REPLAY_VOTE_UNCLEAR}, False, None),
    ],
)
def test_ranks_that_differ_in_a_replay_are_named_and_two_equal_runs_leave_no_doubt(
    votes: dict[int, ReplayVote], is_decided: bool, proven_step: int | None
) -> None:
    (finding,) = SilentCorruption().see_step(view(replayed(7, votes))).findings
    verdict = finding.verdict
    assert (list(verdict.culprits), verdict.step) == ([3, 6], 7)
    assert (verdict.confidence_ratio, finding.proven_step) == (1.0 if is_decided else 0.5, proven_step)
    assert verdict.corruption == store.CorruptionDetail(part="all_reduce 3", has_majority=is_decided, vote=votes[3])


def test_replays_name_a_rank_once_in_a_generation_and_hashes_are_compared_as_well() -> None:
    votes = {3: REPLAY_VOTE_FIRST}
    odd = store.StepSummary(step=9, replicas=[side(NORM, 1, 0, 2), side(NORM, 2, 3)])
    steps = [
        replayed(7, votes),
        replayed(8, {**votes, 5: REPLAY_VOTE_FIRST}),
        odd,
        replayed(10, {4: REPLAY_VOTE_FIRST}),
    ]
    detector, verdicts = show(SilentCorruption(), steps)
    assert [(one.step, *one.culprits) for one in verdicts] == [(7, 3), (8, 5), (9, 3), (10, 4)]
    assert len(show(detector.restarted(10), steps[:1])[1]) == 1


def after(detector: SilentCorruption, *steps: store.StepSummary) -> SilentCorruption:
    following, _ = show(detector, steps)
    assert isinstance(following, SilentCorruption)
    return following


@pytest.mark.parametrize(
    ("replica_bytes", "note"),
    [
        (100, ""),
        (3, "silent corruption is looked for in 3.0% of the parameters' memory, and in the rest by replayed steps"),
        (0, "silent corruption is looked for only by replayed steps"),
    ],
)
def test_what_replays_look_for_is_said_once_also_over_a_restart(replica_bytes: int, note: str) -> None:
    coverage = [store.RankCoverage(rank=rank, replica_bytes=replica_bytes, parameter_bytes=100) for rank in (0, 1)]
    first = store.StepSummary(step=0, coverage=coverage)
    looked = after(SilentCorruption(), first, replayed(4, {3: REPLAY_VOTE_FIRST}))
    restarted = looked.restarted(4)
    later = (after(looked, replayed(8, {})), restarted, after(restarted, first))
    assert [one.note for one in (looked, *later)] == [note] * 4
    refused = after(looked, replayed(9, {}, refusal="gradients are left"))
    assert (refused.note, after(refused, replayed(10, {})).note) == ("no step is replayed: gradients are left", note)

"""Replicas that nothing but their history shows."""

from collections.abc import Callable, Iterable, Sequence

import pytest

from holdfast_core.detectors.numbers import learned_replicas
from holdfast_core.detectors.numbers.learned_replicas import LEARNING_LOOKS, LearnedReplicas
from holdfast_core.detectors.numbers.silent_corruption import UNDECIDED_STEPS, SilentCorruption
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show

SAMPLE, UP, DOWN = "", "model/up.weight", "model/down.weight"
Values = Callable[[int, int], int]
"""Hash that a rank reports in a step, before it is made different for each part."""

CLEAN_STEPS = LEARNING_LOOKS + 10


def replicas(step: int, _rank: int) -> int:
    return step


def run(
    values: Values, ranks: Sequence[int], steps: Iterable[int], *, turns: Sequence[str] = (UP, DOWN)
) -> Iterable[store.StepSummary]:
    """Yield the steps of ranks whose sample and one other part have these values."""
    for step in steps:
        summary = store.StepSummary(step=step)
        for number, part in enumerate((SAMPLE, turns[step % len(turns)])):
            sides: dict[int, list[int]] = {}
            for rank in ranks:
                sides.setdefault(1000 * number + values(step, rank), []).append(rank)
            summary.plain.extend(
                store.ReplicaHashes(part=part, hash=hash_, ranks=held) for hash_, held in sides.items()
            )
        yield summary


def flipped(at: int, odd: int, *, part: str) -> Callable[[Iterable[store.StepSummary]], Iterable[store.StepSummary]]:
    """Return a change to steps: from step ``at`` on, one rank holds other values of one part."""

    def change(steps: Iterable[store.StepSummary]) -> Iterable[store.StepSummary]:
        for summary in steps:
            for side in list(summary.plain):
                if summary.step >= at and side.part == part and odd in side.ranks:
                    side.ranks.remove(odd)
                    summary.plain.add(part=part, hash=side.hash + 500, ranks=[odd])
            yield summary

    return change


@pytest.mark.parametrize("part", [SAMPLE, UP])
def test_a_flipped_bit_of_one_of_four_learned_replicas_names_its_rank(part: str) -> None:
    steps = flipped(CLEAN_STEPS, 2, part=part)(run(replicas, range(4), range(CLEAN_STEPS + 4)))
    (verdict,) = show(SilentCorruption(), steps)[1]
    assert (list(verdict.culprits), verdict.confidence_ratio, verdict.corruption.part) == ([2], 1.0, part)
    assert verdict.corruption.HasField("equal_step")


def test_of_two_learned_replicas_both_readings_are_reported() -> None:
    total = CLEAN_STEPS + UNDECIDED_STEPS + 2
    steps = flipped(CLEAN_STEPS, 1, part=UP)(run(replicas, range(2), range(total)))
    (verdict,) = show(SilentCorruption(), steps)[1]
    assert (list(verdict.culprits), verdict.confidence_ratio, verdict.step) == ([0, 1], 0.5, CLEAN_STEPS)
    assert verdict.message == (
        f"ranks 0, 1 hold different values of {UP} at the end of step {CLEAN_STEPS}, and the same at the end of step"
        f" {CLEAN_STEPS - 2}: the memory of either is corrupted, or the training loop no longer keeps them equal"
    )


def test_tensor_parallel_ranks_are_compared_with_their_own_replicas() -> None:
    def by_column(step: int, rank: int) -> int:
        return step + 100_000 * (rank % 2)

    steps = flipped(CLEAN_STEPS, 3, part=DOWN)(run(by_column, range(6), range(CLEAN_STEPS + 4)))
    (verdict,) = show(SilentCorruption(), steps)[1]
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([3], 1.0)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda step, rank: 1000 * step + rank, id="each rank has its own"),
        pytest.param(lambda step, rank: 1000 * step + (0 if step % 4 == 0 else rank), id="local SGD"),
        pytest.param(lambda step, rank: 7 if step < 100 else 1000 * step + rank, id="equal until training begins"),
        pytest.param(lambda step, rank: 1000 * step + (rank if step >= 100 else 0), id="averaged later"),
        pytest.param(lambda step, rank: 1000 * step + (rank // 2 if step >= 100 else 0), id="averaged in pairs later"),
        pytest.param(
            lambda step, rank: 1000 * step + rank // 2 + (10 * (rank % 2) if step >= 100 else 0), id="two pairs part"
        ),
    ],
)
def test_ranks_that_are_no_replicas_or_stop_to_be_some_are_no_finding(values: Values) -> None:
    detector, verdicts = show(SilentCorruption(), run(values, range(4), range(200)))
    assert verdicts == []
    assert isinstance(detector, SilentCorruption)


def test_a_part_that_was_never_seen_to_be_equal_is_not_compared() -> None:
    # An expert of each rank, which the sample of many parameters missed.
    steps = [*run(replicas, range(4), range(100), turns=(UP,))]
    for summary in steps:
        for rank in range(4):
            summary.plain.add(part="model/expert", hash=summary.step + 1000 * rank, ranks=[rank])
    assert show(SilentCorruption(), steps)[1] == []


def test_ranks_that_look_less_often_are_waited_for() -> None:
    def looks(summaries: Iterable[store.StepSummary]) -> Iterable[store.StepSummary]:
        for summary in summaries:
            for side in list(summary.plain):
                if summary.step % 4 and 3 in side.ranks:
                    side.ranks.remove(3)
            yield summary

    total = 4 * CLEAN_STEPS
    steps = looks(flipped(total, 1, part=SAMPLE)(run(replicas, range(4), range(total + 8), turns=(UP, DOWN, "norm"))))
    (verdict,) = show(SilentCorruption(), steps)[1]
    assert list(verdict.culprits) == [1]


def covered(*ranks: store.RankCoverage) -> store.StepSummary:
    return store.StepSummary(step=0, coverage=ranks)


def note_after(*steps: store.StepSummary) -> str:
    detector, _ = show(SilentCorruption(), steps)
    assert isinstance(detector, SilentCorruption)
    return detector.note


WHOLE = store.RankCoverage(rank=0, replica_bytes=100, parameter_bytes=100)
SHARDED = [store.RankCoverage(rank=rank, parameter_bytes=100) for rank in range(4)]
NORMS = [store.RankCoverage(rank=rank, replica_bytes=3, parameter_bytes=100) for rank in range(4)]
PLAIN = [store.RankCoverage(rank=rank, plain_bytes=100, parameter_bytes=100) for rank in range(4)]


@pytest.mark.parametrize(
    ("ranks", "note"),
    [
        ([], ""),
        ([WHOLE, WHOLE], ""),
        (SHARDED, "silent corruption is not looked for: no rank holds a copy of another rank's parameters"),
        (SHARDED[:1], "silent corruption is not looked for: only one rank reports its parameters"),
        (
            [store.RankCoverage(rank=rank) for rank in range(2)],
            "silent corruption is not looked for: no parameters are in the state given to attach()",
        ),
        (
            NORMS,
            "silent corruption is looked for only in 3.0% of the parameters' memory: the rest has no copy on another"
            " rank",
        ),
        (PLAIN, ""),  # not known yet
    ],
)
def test_what_is_not_compared_is_said_at_the_start(ranks: Sequence[store.RankCoverage], note: str) -> None:
    assert note_after(covered(*ranks)) == note


def test_plain_parameters_are_said_to_be_no_replicas_once_that_is_known() -> None:
    assert note_after(covered(*PLAIN), *run(replicas, range(4), range(1, 40))) == ""
    own = run(lambda step, rank: 1000 * step + rank, range(4), range(1, 40))
    assert "no rank was seen to hold the same parameters" in note_after(covered(*PLAIN), *own)
    local = run(lambda step, rank: 1000 * step + (rank if step % 2 else 0), range(4), range(1, 100))
    assert "no rank was seen to hold the same parameters" in note_after(covered(*PLAIN), *local)


def test_the_note_stays_over_a_restart_so_that_it_is_not_new_again() -> None:
    detector, _ = show(SilentCorruption(), [covered(*SHARDED)])
    assert isinstance(detector, SilentCorruption)
    assert detector.restarted(3).note == detector.note != ""


def unseen_after(*steps: store.StepSummary, rank: int = 1) -> str:
    detector, _ = show(SilentCorruption(), steps)
    assert isinstance(detector, SilentCorruption)
    return detector.unseen(rank)


def test_a_flipped_bit_is_seen_only_in_learned_replicas() -> None:
    assert unseen_after(covered(WHOLE), rank=0) == ""
    assert "0 of 16 looks" in unseen_after(covered(*PLAIN))
    assert unseen_after(covered(*PLAIN), *run(replicas, range(4), range(1, 40))) == ""
    own = run(lambda step, rank: 1000 * step + rank, range(4), range(1, 40))
    assert unseen_after(covered(*PLAIN), *own).startswith("nobody could see it")


def test_parts_whose_names_never_come_again_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_replicas, "_MOST_ALIKE", 8)
    known = LearnedReplicas()
    for step in range(LEARNING_LOOKS + 20):
        sides = [store.ReplicaHashes(part=part, hash=step, ranks=[0, 1]) for part in (SAMPLE, f"part{step}")]
        known, differences = known.see(step, sides)
        assert differences == []
    assert known.is_learned
    assert len(known.alike) <= 8
    assert next(iter(known.alike.values())).step == LEARNING_LOOKS + 19  # the sample is still compared

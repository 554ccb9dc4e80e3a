"""Samples that are used twice."""

from collections.abc import Iterable

from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.numbers.duplicate_samples import WINDOW_STEPS, DuplicateSamples
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, view


def use(dp: int, samples: str, rank: int | None = None) -> store.SamplesUsed:
    return store.SamplesUsed(dp=dp, rank=dp if rank is None else rank, fingerprint=samples.ljust(8).encode())


def own_samples(step: int) -> store.StepSummary:
    return store.StepSummary(step=step, samples=[use(dp, f"{step} {dp}") for dp in (0, 1)])


def after(steps: Iterable[int]) -> Detector:
    """Return the detector after steps whose ranks have samples of their own."""
    detector, verdicts = show(DuplicateSamples(), map(own_samples, steps))
    assert verdicts == []
    return detector


def findings(detector: Detector, step: int, *uses: store.SamplesUsed) -> list[tuple[str, list[int]]]:
    """Return messages and culprits of the verdicts on a step."""
    _, verdicts = show(detector, [store.StepSummary(step=step, samples=uses)])
    return [(verdict.message, list(verdict.culprits)) for verdict in verdicts]


def test_ranks_with_samples_of_their_own_in_every_step_are_no_duplicate() -> None:
    after(range(2 * WINDOW_STEPS))


def test_two_data_parallel_indices_with_the_same_samples_are_named() -> None:
    assert findings(DuplicateSamples(), 4, use(0, "a"), use(1, "b"), use(2, "a", rank=5), use(3, "d")) == [
        ("data-parallel indices 0, 2 trained on the same samples in step 4", [0, 5])
    ]


def test_ranks_of_one_data_parallel_index_share_their_samples_by_design() -> None:
    assert findings(DuplicateSamples(), 4, use(0, "a", rank=0), use(0, "a", rank=8), use(1, "b", rank=4)) == []


def test_samples_of_an_earlier_step_are_found_with_that_step_and_the_rank_that_has_them_now() -> None:
    assert findings(after(range(10)), 10, use(0, "new"), use(1, "3 0", rank=7)) == [
        ("step 10 trained again on samples of step 3", [7])
    ]


def test_of_several_earlier_steps_the_newest_is_reported() -> None:
    assert findings(after(range(10)), 10, use(0, "3 0"), use(1, "8 1")) == [
        ("step 10 trained again on samples of step 8", [1])
    ]


def test_samples_are_remembered_for_the_window_and_no_longer() -> None:
    assert len(findings(after(range(WINDOW_STEPS)), WINDOW_STEPS, use(0, "0 0"))) == 1
    assert findings(after(range(WINDOW_STEPS + 1)), WINDOW_STEPS + 1, use(0, "0 0")) == []


def test_steps_that_a_restart_undoes_are_done_again_without_a_message() -> None:
    assert show(after(range(10)).restarted(5), map(own_samples, range(6, 20)))[1] == []


def test_a_restart_that_lost_the_data_position_is_found_in_its_first_step() -> None:
    assert findings(after(range(10)).restarted(5), 6, *own_samples(0).samples) == [
        ("step 6 trained again on samples of step 0", [0, 1])
    ]


def test_steps_without_fingerprints_are_passed_over() -> None:
    detector = after(range(3))
    assert detector.see_step(view(store.StepSummary(step=3))).next == detector


def test_a_generation_is_reported_once_and_every_step_is_counted() -> None:
    shared = store.StepSummary(step=1, samples=[use(0, "a"), use(1, "a")])
    first = DuplicateSamples().see_step(view(shared))
    second = first.next.see_step(view(shared))
    assert (len(first.findings), len(second.findings)) == (1, 0)
    assert first.anomalies == second.anomalies == ("duplicate_samples",)

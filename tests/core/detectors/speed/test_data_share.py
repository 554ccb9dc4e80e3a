"""Steps that wait for data."""

import random
from collections.abc import Callable

from holdfast_core.detectors.framework import Detector
from holdfast_core.detectors.speed.data_share import PERSISTENT_S, WARM_UP_STEPS, WINDOW_STEPS, DataShare
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import view
from tests.support.ticks import START_UNIX_S, tick

RANKS = 4


def watch(
    steps: int, share: Callable[[int, int], float], detector: Detector | None = None
) -> tuple[Detector, list[store.Verdict]]:
    """Show a detector steps of 1 s. ``share(rank, step)``: seconds for which the rank waits for data."""
    detector = detector or DataShare()
    verdicts, waited_s = [], [0.0] * RANKS
    for step in range(steps):
        waits = [share(rank, step) for rank in range(RANKS)]
        waited_s = [before + wait for before, wait in zip(waited_s, waits, strict=True)]
        summary = store.StepSummary(step=step, duration_s=1.0, phase_s={common.PHASE_DATA: max(waits)})
        result = detector.see_step(view(summary, now=START_UNIX_S + step))
        assert result.findings == ()
        ranks = (
            store.RankState(rank=r, progress=common.Progress(step=step), phase_s={common.PHASE_DATA: waited_s[r]})
            for r in range(RANKS)
        )
        result = result.next.see_tick(tick(START_UNIX_S + step, ranks))
        verdicts += [finding.verdict for finding in result.findings]
        detector = result.next
    return detector, verdicts


def test_a_run_that_waits_from_the_start_is_reported_once_it_is_known() -> None:
    (verdict,) = watch(300, lambda _, step: 0.4)[1]
    known_in = WARM_UP_STEPS + WINDOW_STEPS - 1
    assert (verdict.kind, verdict.step) == (store.VERDICT_KIND_DATA_STALL, known_in + PERSISTENT_S)
    assert verdict.message == "steps wait 40% of their time for data, all ranks alike"


def test_the_ranks_that_wait_longest_are_named() -> None:
    (verdict,) = watch(300, lambda rank, step: (0.5 if rank == 2 else 0.05) if step >= 100 else 0.05)[1]
    assert (list(verdict.culprits), verdict.message) == ([2], "steps wait 50% of their time for data, rank 2 longest")


def test_a_share_that_was_nearly_as_large_before_is_not_reported() -> None:
    assert watch(400, lambda _, step: 0.25 if step < 200 else 0.4)[1] == []


def test_a_few_slow_steps_are_not_reported() -> None:
    assert watch(400, lambda _, step: 0.9 if 200 <= step < 210 else 0.05)[1] == []


def test_a_second_episode_is_reported_again() -> None:
    _, verdicts = watch(400, lambda _, step: 0.05 if step < 100 or 200 <= step < 300 else 0.5)
    assert [verdict.step // 100 for verdict in verdicts] == [1, 3]


def test_a_new_generation_is_reported_anew() -> None:
    detector, _ = watch(100, lambda _, step: 0.4)
    assert len(watch(100, lambda _, step: 0.4, detector.restarted(99))[1]) == 1


def test_heavy_tailed_waits_within_the_limit_are_not_reported() -> None:
    noise = random.Random(3)
    assert watch(4000, lambda _, step: min(0.95, noise.expovariate(10.0)))[1] == []

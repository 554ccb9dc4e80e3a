"""The loss watch on made-up losses: blips, spikes and new levels."""

import math
import random
from collections.abc import Iterable

import pytest

from holdfast_core.detectors.numbers.loss_baseline import MIN_HISTORY, WINDOW
from holdfast_core.detectors.numbers.loss_spike import LossSpike
from holdfast_core.detectors.numbers.loss_watch import LossReading, LossWatch
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of

NOISE = [0.01 * math.sin(12.9898 * i) for i in range(1000)]


def healthy(steps: int) -> list[float]:
    return [2.0 + NOISE[i % 1000] for i in range(steps)]


def watch_all(losses: Iterable[float | None], watch: LossWatch | None = None) -> tuple[LossWatch, list[LossReading]]:
    watch = watch or LossWatch()
    readings = []
    for step, loss in enumerate(losses):
        watch, reading = watch.observe(step, loss)
        readings.append(reading)
    return watch, readings


def spikes_at(readings: list[LossReading]) -> list[int]:
    return [step for step, reading in enumerate(readings) if reading.spike]


def blips_at(readings: list[LossReading]) -> list[int]:
    return [step for step, reading in enumerate(readings) if reading.blip]


def test_one_step_jump_is_a_blip_and_no_spike() -> None:
    _, readings = watch_all([*healthy(200), 9.0, *healthy(50)])
    assert (blips_at(readings), spikes_at(readings)) == ([200], [])


def test_two_outlying_steps_of_five_are_no_spike() -> None:
    _, readings = watch_all([*healthy(200), 9.0, 9.0, *healthy(3), 9.0, *healthy(50)])
    assert (blips_at(readings), spikes_at(readings)) == ([200, 201, 205], [])


def test_third_outlying_step_of_five_is_a_spike_and_reported_once() -> None:
    watch, readings = watch_all([*healthy(200), 9.0, 2.0, 9.0, 2.0, 9.0, 9.0, 9.0])
    assert spikes_at(readings) == [204]
    assert watch.in_spike


def test_a_spike_names_the_last_good_step_before_its_first_outlying_one() -> None:
    _, readings = watch_all([*healthy(200), 9.0, 2.0, 9.0, 2.0, 9.0])
    assert readings[204].spike
    assert (readings[204].proven_step, {reading.proven_step for reading in readings[:204]}) == (199, {-1})


def test_next_spike_is_reported_after_five_calm_steps_and_not_before() -> None:
    burst = [9.0] * 3
    _, four_calm = watch_all([*healthy(200), *burst, *healthy(4), *burst])
    assert spikes_at(four_calm) == [202]
    _, five_calm = watch_all([*healthy(200), *burst, *healthy(5), *burst])
    assert spikes_at(five_calm) == [202, 210]


def test_rise_of_less_than_two_percent_is_no_blip_however_quiet_the_loss_was() -> None:
    _, readings = watch_all([2.0] * 200 + [2.039] * 5)
    assert blips_at(readings) == []
    assert readings[-1].zscore > 5


def test_falling_loss_is_no_blip() -> None:
    _, readings = watch_all([*healthy(200), *[1.0] * 20])
    assert blips_at(readings) == []
    assert readings[200].zscore < -5


def test_rise_within_the_noise_is_no_blip() -> None:
    noisy = [2.0 + 30 * noise for noise in NOISE]
    assert blips_at(watch_all([*noisy[:200], 2.5])[1]) == []


def test_outlying_losses_do_not_move_the_baseline() -> None:
    assert blips_at(watch_all([*healthy(200), *[9.0] * 100])[1]) == list(range(200, 300))


def test_level_that_stays_is_accepted_and_later_judged_from() -> None:
    level = [9.0 + noise for noise in NOISE]
    watch, readings = watch_all([*healthy(200), *level[:WINDOW], *level[:50], *[30.0] * 3])
    assert spikes_at(readings) == [202, 200 + WINDOW + 52]
    assert blips_at(readings)[-4:] == [200 + WINDOW - 1, *range(200 + WINDOW + 50, 200 + WINDOW + 53)]
    assert watch.in_spike


def test_nothing_is_judged_before_there_is_enough_history() -> None:
    _, readings = watch_all([*healthy(MIN_HISTORY - 1), 99.0, 99.0, 99.0])
    assert readings[MIN_HISTORY - 1] == LossReading()
    assert all(reading == LossReading() for reading in readings[:MIN_HISTORY])


def test_loss_that_was_always_zero_is_not_judged() -> None:
    _, readings = watch_all([0.0] * 100 + [0.5] * 3)
    assert spikes_at(readings) == []
    assert all(math.isfinite(reading.zscore) for reading in readings)


def test_loss_that_is_mostly_zero_is_judged_by_its_largest_values() -> None:
    rewards = [0.02 * NOISE[i] if i % 7 == 0 else 0.0 for i in range(400)]
    assert spikes_at(watch_all([*rewards, *[0.0002] * 4])[1]) == []
    _, readings = watch_all([*rewards, *[0.5] * 4])
    assert spikes_at(readings) != []
    assert all(abs(reading.zscore) < 1e5 for reading in readings)


@pytest.mark.parametrize("seed", range(5))
def test_second_mode_of_a_fifth_of_the_steps_is_no_spike(seed: int) -> None:
    rng = random.Random(seed)
    losses = [(4.5 if rng.random() < 0.2 else 3.0) + rng.gauss(0.0, 0.1) for _ in range(3000)]
    assert spikes_at(watch_all(losses)[1]) == []


def test_jump_that_decays_while_the_loss_falls_is_a_spike() -> None:
    losses = [4.0 - 0.004 * i + noise for i, noise in enumerate(NOISE[:300])]
    losses[250:254] = [losses[250] + rise for rise in (0.8, 0.12, 0.1, 0.07)]
    assert spikes_at(watch_all(losses)[1]) == [252]


@pytest.mark.parametrize(("rises", "found"), [((0.9, 0.05, 0.024), [252]), ((0.9, 0.05, 0.0), [])])
def test_jump_that_is_gone_after_three_steps_is_a_spike_if_it_decays(
    rises: tuple[float, ...], found: list[int]
) -> None:
    losses = [2.0 + noise for noise in NOISE[:300]]
    losses[250:253] = [2.0 + rise for rise in rises]
    assert spikes_at(watch_all(losses)[1]) == found


def test_spike_shortly_after_another_is_found() -> None:
    burst = [2.0 + 4.0 * 0.9**i for i in range(20)]
    second = [2.15] * 4
    assert spikes_at(watch_all([*healthy(200), *burst, *healthy(30), *second])[1]) == [202, 252]


def test_steps_before_a_spike_that_were_unsettled_prove_nothing() -> None:
    _, readings = watch_all([*healthy(200), 2.025, 2.0, 2.025, *[9.0] * 3])
    assert (spikes_at(readings), readings[205].proven_step) == ([205], 199)


def test_losses_of_any_size_give_finite_z() -> None:
    _, readings = watch_all([*healthy(100), 1e308, -1e308, 1e308, *healthy(10)])
    assert all(math.isfinite(reading.zscore) and math.isfinite(reading.level) for reading in readings)


def resumed(after_step: int, losses: Iterable[float]) -> list[LossReading]:
    watch = watch_all(healthy(400))[0].resumed(after_step)
    readings = []
    for step, loss in enumerate(losses, after_step + 1):
        watch, reading = watch.observe(step, loss)
        readings.append(reading)
    return readings


def test_loss_that_is_higher_after_a_restart_is_a_bad_resume() -> None:
    readings = resumed(380, [2.6 + noise for noise in NOISE[:100]])
    assert spikes_at(readings) == [2]
    assert (readings[2].resumed_after, readings[2].proven_step, round(readings[2].level, 1)) == (380, 380, 2.0)


def test_loss_that_is_as_before_the_restart_is_no_bad_resume() -> None:
    assert spikes_at(resumed(380, healthy(100))) == []


def test_undone_steps_are_not_compared_with() -> None:
    watch = watch_all([*healthy(300), *[9.0 + noise for noise in NOISE[:300]]])[0].resumed(290)
    assert spikes_at(watch_all(healthy(500)[291:], watch)[1]) == []
    assert watch.observe(291, 2.0)[1].zscore < 5


def test_restart_before_there_was_enough_history_is_not_judged() -> None:
    assert spikes_at(watch_all([9.0] * 10, watch_all(healthy(20))[0].resumed(10))[1]) == []


def test_negative_loss_is_judged_by_its_rise() -> None:
    assert spikes_at(watch_all([-loss for loss in healthy(200)] + [-1.0] * 3)[1]) == [202]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, None])
def test_steps_without_a_finite_loss_are_kept_out_of_the_baseline(loss: float | None) -> None:
    _, readings = watch_all([*healthy(100), loss, loss, *healthy(10)])
    assert readings[100] == readings[101] == LossReading()
    assert blips_at(readings) == []


def test_step_seen_before_is_passed_over() -> None:
    watch, _ = watch_all(healthy(100))
    assert watch.observe(99, 50.0) == (watch, LossReading())


def test_schedule_that_begins_anew_is_no_spike_where_the_learning_rate_is_reported() -> None:
    losses = [*healthy(200), *[2.6 + noise for noise in NOISE[:100]]]

    def reported(rates: list[float]) -> list[int]:
        rows = zip(losses, rates, strict=True)
        summaries = [
            store.StepSummary(step=step, loss_sum=loss, loss_count=1, learning_rate=rate)
            for step, (loss, rate) in enumerate(rows)
        ]
        return steps_of(show(LossSpike(), summaries)[1])

    assert reported([1e-4] * 200 + [1e-3] * 100) == []
    assert reported([1e-4] * 300) == [202]


def test_a_spike_says_in_which_step_it_began() -> None:
    losses = [*healthy(200), 3.0, 2.0, 3.0, *[3.0] * 5]
    _, verdicts = show(
        LossSpike(), (store.StepSummary(step=s, loss_sum=loss, loss_count=1) for s, loss in enumerate(losses))
    )
    (verdict,) = verdicts
    assert (verdict.step, verdict.loss_spike.since_step) == (203, 200)
    assert verdict.message.startswith("loss spike at step 203, since step 200: 3, ")


def test_a_spike_between_blips_does_not_begin_with_an_old_one() -> None:
    _, readings = watch_all([*healthy(200), 9.0, *healthy(5), *[9.0] * 3])
    assert [readings[step].since_step for step in spikes_at(readings)] == [206]


def test_a_jump_among_the_first_losses_is_not_judged() -> None:
    assert spikes_at(watch_all([*healthy(20), *[9.0] * 200])[1]) == []

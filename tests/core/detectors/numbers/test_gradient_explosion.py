"""Gradient norms that leave their range."""

import csv
import math
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast_core.detectors.numbers.gradient_explosion import WINDOW_STEPS, GradientExplosion
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of

CURVES = Path(__file__).parents[3] / "data" / "loss_curves"
NOISE = random.Random(0)
STEADY = [0.25 * NOISE.lognormvariate(0.0, 0.1) for _ in range(200)]


def summaries(norms: Iterable[float]) -> Iterable[store.StepSummary]:
    return (store.StepSummary(step=step, grad_norm=norm) for step, norm in enumerate(norms))


def reported_steps(norms: Iterable[float]) -> list[int]:
    return steps_of(show(GradientExplosion(), summaries(norms))[1])


def test_three_outlying_norms_of_five_are_reported_once_as_an_early_warning() -> None:
    _, verdicts = show(GradientExplosion(), summaries([*STEADY, 5.0, 0.25, 5.0, 0.25, 5.0, 6.0, 7.0]))
    (verdict,) = verdicts
    assert verdict.step == 204
    assert verdict.message.startswith("early warning: the gradient norm is 5 at step 204, ")
    assert verdict.gradient_explosion.median_ratio == pytest.approx(20.0, rel=0.1)


def test_two_outlying_norms_are_not_reported() -> None:
    assert reported_steps([*STEADY, 5.0, 5.0, *STEADY]) == []


def test_a_rise_of_two_and_a_half_times_is_not_reported_and_of_four_times_is() -> None:
    assert reported_steps([*STEADY, *[0.625] * 50]) == []
    assert reported_steps([*STEADY, *[1.0] * 50]) == [202]


def test_an_episode_ends_with_five_calm_steps() -> None:
    assert reported_steps([*STEADY, *[5.0] * 10, *STEADY[:5], *[5.0] * 3]) == [202, 217]


def test_a_level_that_stays_becomes_the_usual_one() -> None:
    assert reported_steps([*STEADY, *[5.0] * (WINDOW_STEPS + 10), *[500.0] * 3]) == [202, 200 + WINDOW_STEPS + 12]


def test_the_first_steps_have_nothing_to_be_compared_with() -> None:
    assert reported_steps([10.0 * 0.97**step for step in range(20)] + [50.0] * 5) == []


def test_norms_that_are_not_finite_and_steps_without_any_are_passed_over() -> None:
    _, verdicts = show(
        GradientExplosion(), [*summaries([*STEADY, math.nan, math.inf, 0.0]), store.StepSummary(step=203)]
    )
    assert verdicts == []


def test_a_new_generation_has_a_baseline_of_its_own() -> None:
    detector, _ = show(GradientExplosion(), summaries(STEADY))
    assert show(detector.restarted(100), summaries([50.0] * 100))[1] == []


@pytest.mark.parametrize("sigma", [0.05, 0.3, 0.6])
def test_heavy_tailed_noise_that_drifts_is_not_reported(sigma: float) -> None:
    noise = random.Random(7)
    norms = [(1.0 + 10.0 * 0.99**step) * noise.lognormvariate(0.0, sigma) for step in range(4000)]
    lone = [norm * (30.0 if noise.random() < 0.005 else 1.0) for norm in norms]
    assert reported_steps(lone) == []


def test_a_healthy_run_is_not_reported_and_bloom_is_by_the_step_in_which_its_loss_jumps() -> None:
    with (CURVES / "gpt2_124m_llmc_clean.csv").open() as file:
        healthy = [float(row["grad_norm"]) for row in csv.DictReader(file)]
    with (CURVES / "bigscience_incident_excerpts.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == "tr11-176B" and 31214 <= int(row["step"]) <= 31222]
    bloom = [float(row["grad_norm"]) for row in rows]
    assert reported_steps(healthy) == []
    jump = next(index for index, row in enumerate(rows) if float(row["loss"]) > 5.0)
    (reported,) = reported_steps([*STEADY, *bloom])
    assert reported <= len(STEADY) + jump

"""Numbers that are not finite, and the ranks they come from."""

import math
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import pytest

from holdfast_core.detectors.numbers.non_finite import FINITE_LOSSES, NonFinite
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show, steps_of

REPLICAS = {rank: {"dp": rank} for rank in range(4)}
STAGES = {rank: {"dp": rank // 2, "pp": rank % 2} for rank in range(4)}


def verdicts(*bad: store.NonFinite, coordinates: object = REPLICAS, **numbers: Any) -> list[store.Verdict]:
    summary = store.StepSummary(step=7, nonfinite=bad, **numbers)
    return show(NonFinite(), [summary], coordinates=coordinates)[1]


def bad(quantity: str, *ranks: int) -> list[store.NonFinite]:
    return [store.NonFinite(rank=rank, quantity=quantity) for rank in ranks]


def own(rank: int, parameter: str, unix_s: float = 10.0) -> store.NonFinite:
    return store.NonFinite(rank=rank, quantity="gradient", parameter=parameter, unix_s=unix_s)


def test_the_rank_whose_own_gradient_went_bad_first_is_the_origin() -> None:
    (verdict,) = verdicts(
        store.NonFinite(rank=0, quantity="grad_norm"),
        store.NonFinite(rank=2, quantity="gradient", module="layers.3", unix_s=11.0),
        store.NonFinite(rank=5, quantity="gradient", module="layers.1", unix_s=10.5),
    )
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([5], 0.8)
    assert verdict.message == (
        "rank 5 made a gradient that is not finite in layers.1 at step 7, before rank 2; grad_norm of the run is not"
        " finite"
    )


def test_a_rank_whose_own_gradient_of_a_parameter_was_bad_is_named() -> None:
    (verdict,) = verdicts(*bad("grad_norm", 0, 1, 2, 3), own(2, "model.up.weight"))
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([2], 0.9)
    assert verdict.message == (
        "rank 2 had a gradient of model.up.weight that was not finite at step 7, before a sum over ranks; grad_norm"
        " of the run is not finite"
    )


def test_of_two_ranks_with_bad_gradients_of_their_own_none_is_blamed() -> None:
    (verdict,) = verdicts(own(2, "model.up.weight"), own(1, "model.up.weight", 11.0))
    assert list(verdict.culprits) == []
    assert verdict.message == (
        "rank 2 had a gradient of model.up.weight that was not finite at step 7, before a sum over ranks;"
        " rank 1 had one, too"
    )


def test_a_rank_that_shares_layers_with_others_is_not_blamed_for_a_bad_gradient() -> None:
    (verdict,) = verdicts(own(2, "model.up.weight"), coordinates={rank: {"dp": rank // 2} for rank in range(4)})
    assert list(verdict.culprits) == []
    assert verdict.message.startswith("rank 2 had a gradient of model.up.weight that was not finite")


def test_ranks_that_see_a_norm_of_the_run_are_not_blamed() -> None:
    (verdict,) = verdicts(*bad("grad_norm", 3, 1, 0, 2))
    assert list(verdict.culprits) == []
    assert verdict.message == ("grad_norm is not finite since step 7, on all 4 ranks; no rank is known as the origin")
    (verdict,) = verdicts(*bad("grad_norm", 3, 1))
    assert verdict.message == "grad_norm is not finite since step 7, on ranks 1, 3; no rank is known as the origin"


def test_a_parameter_with_a_bad_gradient_is_named_and_its_holder_is_not_blamed() -> None:
    reports = bad("grad_norm", 0, 1, 2, 3)
    reports[0].parameter = "model.up.weight"
    (verdict,) = verdicts(*reports)
    assert list(verdict.culprits) == []
    assert verdict.message == (
        "grad_norm is not finite since step 7, on all 4 ranks; rank 0 holds a gradient of model.up.weight that"
        " is not finite; no rank is known as the origin"
    )


def test_the_only_rank_whose_loss_is_not_finite_is_the_origin() -> None:
    (verdict,) = verdicts(*bad("grad_norm", 0, 1, 2, 3), *bad("loss", 2), loss_count=4)
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([2], 0.9)
    assert verdict.message == (
        "loss is not finite since step 7, on rank 2 alone: 3 other ranks report a finite one;"
        " grad_norm is not finite either"
    )


@pytest.mark.parametrize(
    ("ranks", "loss_count", "coordinates"),
    [
        ((1, 2), 4, REPLICAS),  # they may share the sum that went bad
        ((0, 1, 2, 3), 4, REPLICAS),
        ((3,), 2, REPLICAS),  # ranks that report no loss may be the origin
        ((3,), 4, STAGES),  # so may an earlier stage
    ],
)
def test_a_bad_loss_that_may_come_from_another_rank_blames_nobody(
    ranks: tuple[int, ...], loss_count: int, coordinates: object
) -> None:
    (verdict,) = verdicts(*bad("loss", *ranks), loss_count=loss_count, coordinates=coordinates)
    assert list(verdict.culprits) == []
    assert verdict.message.endswith("; no rank is known as the origin")


def test_the_rank_of_a_run_of_one_is_named() -> None:
    (verdict,) = verdicts(*bad("loss", 0), loss_count=1, coordinates={0: {}})
    assert (list(verdict.culprits), verdict.message) == ([0], "loss is not finite since step 7")


def test_gradients_of_a_skipped_step_are_not_reported() -> None:
    assert verdicts(store.NonFinite(rank=1, quantity="gradient", module="m"), overflow=True) == []


def test_an_episode_is_reported_once_in_a_generation() -> None:
    steps = [store.StepSummary(step=step, nonfinite=bad("loss", 1)) for step in range(3)]
    detector, found = show(NonFinite(), steps)
    assert [verdict.step for verdict in found] == [0]
    assert len(show(detector.restarted(2), steps)[1]) == 1


def test_an_origin_that_shows_in_a_later_step_is_reported_once_more() -> None:
    steps = [store.StepSummary(step=step, nonfinite=bad("grad_norm", 0, 1)) for step in range(3)]
    steps += [store.StepSummary(step=step, nonfinite=[own(1, "model.up.weight")]) for step in (3, 4)]
    assert [(v.step, list(v.culprits)) for v in show(NonFinite(), steps)[1]] == [(0, []), (3, [1])]


def losses(bad_steps: Collection[int], steps: int) -> list[store.StepSummary]:
    """Return steps of one rank with a loss that is not finite in ``bad_steps``."""
    return [
        store.StepSummary(step=step, loss_sum=math.nan, loss_count=1, nonfinite=bad("loss", 0))
        if step in bad_steps
        else store.StepSummary(step=step, loss_sum=2.0, loss_count=1)
        for step in range(steps)
    ]


def test_a_later_episode_of_the_loss_is_reported_with_its_own_step() -> None:
    bad_steps = {100, 101, 102, 160, 161, 162}
    assert steps_of(show(NonFinite(), losses(bad_steps, 200))[1]) == [100, 160]


def test_the_finite_losses_between_two_reports_double() -> None:
    always = show(NonFinite(), losses(range(0, 10_000, 2), 10_000))[1]
    gaps = [later - earlier for earlier, later in pairwise(steps_of(always))]
    assert gaps == [2 * FINITE_LOSSES * 2**report for report in range(len(gaps))]
    assert len(always) == 9


def test_a_loss_that_is_finite_for_a_moment_begins_no_new_report() -> None:
    bad_steps = {50, 51, *range(53, 60)}
    assert steps_of(show(NonFinite(), losses(bad_steps, 60))[1]) == [50]


def test_a_bad_norm_before_it_does_not_hide_a_bad_loss() -> None:
    steps = losses({30}, 40)
    steps[10].nonfinite.extend(bad("grad_norm", 0))
    steps[20].nonfinite.extend(bad("grad_norm", 0))
    assert [(v.step, v.non_finite.quantity) for v in show(NonFinite(), steps)[1]] == [(10, "grad_norm"), (30, "loss")]


def test_the_origin_of_a_later_episode_is_reported_too() -> None:
    steps = losses({10, 11, 50, 51}, 60)
    for step in (11, 51):
        steps[step].nonfinite.append(own(0, "model.up.weight"))
    assert steps_of(show(NonFinite(), steps)[1]) == [10, 11, 50, 51]

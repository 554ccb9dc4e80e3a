"""Numbers that are not finite, and the ranks they come from."""

from typing import Any

from holdfast_daemon.core.detectors.numbers.non_finite import NonFinite
from holdfast_proto.v1 import store_pb2 as store
from tests.support.steps import show


def verdicts(*bad: store.NonFinite, **numbers: Any) -> list[store.Verdict]:
    return show(NonFinite(), [store.StepSummary(step=7, nonfinite=bad, **numbers)])[1]


def test_the_rank_whose_own_gradient_went_bad_first_is_the_origin() -> None:
    (verdict,) = verdicts(
        store.NonFinite(rank=0, quantity="grad_norm"),
        store.NonFinite(rank=2, quantity="gradient", module="layers.3", unix_s=11.0),
        store.NonFinite(rank=5, quantity="gradient", module="layers.1", unix_s=10.5),
    )
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([5], 1.0)
    assert verdict.message == (
        "rank 5 made a gradient that is not finite in layers.1 at step 7; grad_norm of the run is not finite"
    )


def test_without_an_origin_the_first_to_see_it_is_named_and_not_trusted() -> None:
    (verdict,) = verdicts(*(store.NonFinite(rank=rank, quantity="grad_norm") for rank in (3, 1)))
    assert (list(verdict.culprits), verdict.confidence_ratio) == ([1], 0.5)


def test_gradients_of_a_skipped_step_are_not_reported() -> None:
    assert verdicts(store.NonFinite(rank=1, quantity="gradient", module="m"), overflow=True) == []


def test_a_generation_is_reported_once() -> None:
    bad = [store.StepSummary(step=step, nonfinite=[store.NonFinite(rank=1, quantity="loss")]) for step in range(3)]
    detector, found = show(NonFinite(), bad)
    assert [verdict.step for verdict in found] == [0]
    assert len(show(detector.restarted(2), bad)[1]) == 1

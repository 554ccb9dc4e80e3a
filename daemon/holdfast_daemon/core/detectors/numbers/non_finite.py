"""A number that must be finite is not: which one, on which ranks, and where it began if that is known.

After a sum over ranks every rank has the same NaN, so that a rank which reports one is not its origin. Two things name
an origin: a rank's own gradient, which was seen before any sum; and a loss that is not finite on one rank alone, while
all others report a finite one. In a pipeline that loss may come from an earlier stage, and then it names nobody.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast_daemon.core.detectors.framework import Detector, DetectorResult, Finding
from holdfast_daemon.core.detectors.view import StepView
from holdfast_proto.step_quantities import GRADIENT, WATCHED
from holdfast_proto.v1 import store_pb2 as store

_OF_GRADIENTS = ("grad_norm", "update_norm", GRADIENT)
_OF_ONE_LOSS = 0.9
"""Confidence in the only rank whose loss is not finite: its samples or its memory are bad, or its own code is."""


def unexpected(summary: store.StepSummary) -> list[store.NonFinite]:
    """Return what is not finite and should be. A skipped step's gradients are not: that it was skipped says it all."""
    return [one for one in summary.nonfinite if not summary.overflow or one.quantity not in _OF_GRADIENTS]


@dataclass(frozen=True)
class NonFinite(Detector):
    """Reports once in a generation, and once more if the origin shows only in a later step."""

    name: ClassVar[str] = "non_finite"

    _reported: bool = False
    _named: bool = False
    _finite_step: int = -1
    """Newest step with a finite loss: the state at its end may be what made the next loss bad."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Look for what is not finite and should be."""
        if step.loss is not None and math.isfinite(step.loss):
            return NonFinite(self._reported, self._named, step.step)._look(step)
        return self._look(step)

    def restarted(self, after_step: int) -> Self:
        """Report again."""
        return type(self)(_finite_step=min(self._finite_step, after_step))

    def _look(self, step: StepView) -> DetectorResult:
        bad = unexpected(step.summary)
        own = [one for one in bad if one.quantity == GRADIENT]
        if not bad or self._named or (self._reported and not own):
            return DetectorResult(self)
        detail = _own_gradient(own, bad) if own else _reported_number(step, bad)
        detail.world_size = len(step.coordinates)
        culprits, confidence = _origin(step, detail, own)
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_NON_FINITE,
            culprits=culprits,
            step=step.step,
            confidence_ratio=confidence,
            non_finite=detail,
        )
        proven_step: int | None = step.step
        if any(one.quantity == "loss" for one in bad):
            # Without a finite loss, the state that the run began with may be bad already.
            proven_step = self._finite_step if self._finite_step >= 0 else None
        finding = Finding(verdict=verdict, proven_step=proven_step)
        return DetectorResult(replace(self, _reported=True, _named=bool(own)), (finding,))


def _own_gradient(own: Sequence[store.NonFinite], bad: Iterable[store.NonFinite]) -> store.NonFiniteDetail:
    ordered = sorted(own, key=lambda one: (one.unix_s, one.rank))
    return store.NonFiniteDetail(
        quantity=GRADIENT,
        ranks=list(dict.fromkeys(one.rank for one in ordered)),
        module=ordered[0].module,
        parameter=ordered[0].parameter,
        also=_quantities(bad)[:1],
    )


def _reported_number(step: StepView, bad: Sequence[store.NonFinite]) -> store.NonFiniteDetail:
    first, *also = _quantities(bad)
    of_first = sorted((one for one in bad if one.quantity == first), key=lambda one: one.rank)
    ranks = list(dict.fromkeys(one.rank for one in of_first))
    holders = [one for one in sorted(bad, key=lambda one: one.rank) if one.parameter and one.rank == ranks[0]]
    finite = step.summary.loss_count - len(ranks) if first == "loss" else 0
    return store.NonFiniteDetail(
        quantity=first,
        ranks=ranks,
        finite_ranks=max(0, finite),
        parameter=holders[0].parameter if holders else "",
        also=also,
    )


def _quantities(bad: Iterable[store.NonFinite]) -> list[str]:
    """Return what is not finite, the loss first: a bad loss makes bad gradients."""
    named = {one.quantity for one in bad}
    return [quantity for quantity in WATCHED if quantity in named]


def _origin(
    step: StepView, detail: store.NonFiniteDetail, own: Sequence[store.NonFinite]
) -> tuple[Sequence[int], float]:
    """Return the rank where it began, if that is known, and the confidence."""
    first, is_alone = detail.ranks[:1], len(detail.ranks) == 1
    if own and detail.module:
        return first, 1.0 if is_alone else 0.8
    if own:
        return (first, 0.9) if is_alone and not _shares_layers(step, first[0]) else ((), 0.5)
    if detail.world_size == 1:
        return first, 1.0
    every_rank_reports = detail.finite_ranks > 0 and detail.finite_ranks + 1 == detail.world_size
    if is_alone and every_rank_reports and not _is_pipeline(step):
        return first, _OF_ONE_LOSS
    return (), 0.5


def _shares_layers(step: StepView, rank: int) -> bool:
    """Return whether the rank exchanges gradients with others within a backward pass, as its place shows."""
    mine = step.coordinates.get(rank, {}).get("dp")
    return mine is not None and sum(place.get("dp") == mine for place in step.coordinates.values()) > 1


def _is_pipeline(step: StepView) -> bool:
    return len({coordinates.get("pp", 0) for coordinates in step.coordinates.values()}) > 1

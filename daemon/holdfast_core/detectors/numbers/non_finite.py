"""A number that must be finite is not: which, on which ranks, where it began; and loss scaling that never recovers.

After a sum over ranks every rank has the same NaN, so that a rank which reports one is not its origin. Two things name
an origin: a rank's own gradient, which was seen before any sum; and a loss that is not finite on one rank alone, while
all others report a finite one. In a pipeline that loss may come from an earlier stage, and then it names nobody.

Losses that are not finite form episodes: a finite loss ends one. A later episode is reported with its own step, because
a person goes back to a checkpoint from before that step. A loop that skips bad batches may have thousands of short
episodes. So after n reports, the next one waits until

    16 x 2^(n - 1) losses have been finite since the last report

A million steps then bring at most 16 reports, and a loss that is NaN in every other of 1,000 steps brings 6. This rule
limits only what is noted. An episode that is longer than its budget has an incident in any case: ``loss_policy`` notes
it if this detector did not report its start.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, Finding, findings_of
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.vocabulary import GRADIENT, WATCHED_FIELDS

_OF_GRADIENTS = ("grad_norm", "update_norm", GRADIENT)
FINITE_LOSSES = 16
"""Finite losses between the first two reports. More than the 10 bad losses in a row that are tolerated by default: a
loss that was finite for longer than that is back."""
_OF_ONE_LOSS = 0.9
"""Confidence in the only rank whose loss is not finite: its samples or its memory are bad, or its own code is."""


def unexpected(summary: store.StepSummary) -> list[store.NonFinite]:
    """Return what is not finite and should be. A skipped step's gradients are not: that it was skipped says it all."""
    return [one for one in summary.nonfinite if not summary.overflow or one.quantity not in _OF_GRADIENTS]


@dataclass(frozen=True)
class NonFinite(Detector):
    """Reports numbers other than the loss once in a generation, and episodes of the loss ever more rarely.

    It reports once more if the origin shows only in a later step.
    """

    name: ClassVar[str] = "non_finite"

    _reported: bool = False
    _named: bool = False
    """Whether the newest report needs no origin: it has one."""
    _finite_step: int = -1
    """Newest step with a finite loss: the state at its end may be what made the next loss bad."""
    _in_episode: bool = False
    """Whether the newest loss is not finite."""
    _episodes: int = 0
    """Episodes of the loss that were reported."""
    _finite_losses: int = 0
    """Finite losses since the newest of these."""

    def see_step(self, step: StepView) -> DetectorResult:
        """Look for what is not finite and should be."""
        if step.loss is not None and math.isfinite(step.loss):
            watch = replace(self, _finite_step=step.step, _in_episode=False, _finite_losses=self._finite_losses + 1)
            return watch._look(step)
        return self._look(step)

    def restarted(self, after_step: int) -> Self:
        """Report again."""
        return type(self)(_finite_step=min(self._finite_step, after_step))

    def _look(self, step: StepView) -> DetectorResult:
        bad = unexpected(step.summary)
        own = [one for one in bad if one.quantity == GRADIENT]
        is_of_loss = any(one.quantity == "loss" for one in bad)
        begins = is_of_loss and not self._in_episode
        watch = replace(self, _in_episode=self._in_episode or is_of_loss)
        is_first = bool(bad) and not self._reported
        is_origin = bool(own) and not self._named
        is_due = begins and self._is_due
        if not (is_first or is_origin or is_due):
            return DetectorResult(watch)
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
        if is_of_loss:
            # Without a finite loss, the state that the run began with may be bad already.
            proven_step = self._finite_step if self._finite_step >= 0 else None
        finding = Finding(verdict=verdict, proven_step=proven_step)
        watch = replace(watch, _reported=True, _named=bool(own))
        if begins:
            watch = replace(watch, _episodes=watch._episodes + 1, _finite_losses=0)
        return DetectorResult(watch, (finding,))

    @property
    def _is_due(self) -> bool:
        """Whether an episode that begins now is reported."""
        return not self._episodes or self._finite_losses >= FINITE_LOSSES << (self._episodes - 1)


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
    return [quantity for quantity in WATCHED_FIELDS if quantity in named]


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


LIMIT_STEPS = 20
"""torch's GradScaler begins at 2^16 and halves at each overflow: after 20 in a row, at 2^-4, the scale is no cause."""


@dataclass(frozen=True)
class OverflowLoop(Detector):
    """Reports once in a generation."""

    name: ClassVar[str] = "overflow_loop"

    _streak_steps: int = 0
    _reported: bool = False

    def see_step(self, step: StepView) -> DetectorResult:
        """Count skipped steps in a row."""
        streak_steps = self._streak_steps + 1 if step.summary.overflow else 0
        if self._reported or streak_steps != LIMIT_STEPS:
            return DetectorResult(OverflowLoop(streak_steps, self._reported))
        detail = store.OverflowDetail(steps=LIMIT_STEPS)
        if step.summary.HasField("loss_scale") and math.isfinite(step.summary.loss_scale):
            detail.loss_scale = step.summary.loss_scale
        verdict = store.Verdict(
            kind=store.VERDICT_KIND_OVERFLOW_LOOP, step=step.step, confidence_ratio=1.0, overflow=detail
        )
        return DetectorResult(OverflowLoop(streak_steps, _reported=True), findings_of(verdict))

    def restarted(self, _after_step: int) -> Self:
        """Count from 0."""
        return type(self)()

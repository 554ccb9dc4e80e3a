"""Finds samples that a run trains on twice.

Every rank may report a fingerprint of the samples that it used in a step. Ranks of one data-parallel index share
their samples by design and report the same. A fingerprint is a duplicate if

* in one step two data-parallel indices report it: the data is not split between them, or
* one of the last 256 steps had it: the data position has moved back, as after a restart that did not restore it.

Steps that a restart undoes are forgotten, so that doing them again is no duplicate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast_core.detectors.framework import Detector, DetectorResult, findings_of
from holdfast_core.detectors.view import StepView
from holdfast_proto.v1 import store_pb2 as store

WINDOW_STEPS = 256


@dataclass(frozen=True)
class _Duplicate:
    """One step's duplicate samples."""

    step: int
    earlier_step: int
    """The newest step that had them before; ``step`` itself if data-parallel indices share them."""
    indices: tuple[int, ...]
    """Data-parallel indices that used them in ``step``."""
    ranks: tuple[int, ...]
    """One rank of each index and node."""


@dataclass(frozen=True)
class DuplicateSamples(Detector):
    """Reports once in a generation, and counts every step."""

    name: ClassVar[str] = "duplicate_samples"

    _window: tuple[tuple[int, frozenset[bytes]], ...] = ()
    """The newest steps and all their fingerprints."""
    _reported: bool = False

    def see_step(self, step: StepView) -> DetectorResult:
        """Compare a step's fingerprints with each other and with those of the steps before."""
        uses = step.summary.samples
        if not uses:
            return DetectorResult(self)
        fingerprints = frozenset(use.fingerprint for use in uses)
        window = (*self._window, (step.step, fingerprints))[-WINDOW_STEPS:]
        duplicate = _shared(step.step, uses) or self._repeated(step.step, uses, fingerprints)
        if duplicate is None:
            return DetectorResult(DuplicateSamples(window, self._reported))
        findings = () if self._reported else findings_of(_verdict(duplicate))
        return DetectorResult(DuplicateSamples(window, _reported=True), findings, ("duplicate_samples",))

    def restarted(self, after_step: int) -> Self:
        """Forget the steps after ``after_step``: they are undone."""
        return type(self)(tuple(known for known in self._window if known[0] <= after_step))

    def _repeated(
        self, step: int, uses: Sequence[store.SamplesUsed], fingerprints: frozenset[bytes]
    ) -> _Duplicate | None:
        for earlier_step, known in reversed(self._window):
            if not known.isdisjoint(fingerprints):
                return _duplicate(step, earlier_step, [use for use in uses if use.fingerprint in known])
        return None


def _shared(step: int, uses: Sequence[store.SamplesUsed]) -> _Duplicate | None:
    indices: dict[bytes, set[int]] = {}
    for use in uses:
        indices.setdefault(use.fingerprint, set()).add(use.dp)
    shared = [use for use in uses if len(indices[use.fingerprint]) > 1]
    return _duplicate(step, step, shared) if shared else None


def _duplicate(step: int, earlier_step: int, uses: Sequence[store.SamplesUsed]) -> _Duplicate:
    return _Duplicate(
        step=step,
        earlier_step=earlier_step,
        indices=tuple(sorted({use.dp for use in uses})),
        ranks=tuple(sorted({use.rank for use in uses})),
    )


def _verdict(duplicate: _Duplicate) -> store.Verdict:
    detail = store.DuplicateSamplesDetail(indices=duplicate.indices, earlier_step=duplicate.earlier_step)
    return store.Verdict(
        kind=store.VERDICT_KIND_DUPLICATE_SAMPLES,
        culprits=duplicate.ranks,
        step=duplicate.step,
        confidence_ratio=1.0,
        duplicate_samples=detail,
    )

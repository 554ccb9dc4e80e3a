"""Finds samples that a run trains on twice.

Every rank may report a fingerprint of the samples that it used in a step. Ranks of one data-parallel index share
their samples by design and report the same. A fingerprint is a duplicate if

* in one step two data-parallel indices report it: the data is not split between them, or
* one of the last 256 steps had it: the data position has moved back, as after a restart that did not restore it.

Steps that a restart undoes are forgotten, so that doing them again is no duplicate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_proto.v1 import store_pb2 as store

WINDOW_STEPS = 256


@dataclass(frozen=True)
class Duplicate:
    """One step's duplicate samples."""

    step: int
    earlier_step: int
    """The newest step that had them before; ``step`` itself if data-parallel indices share them."""
    indices: tuple[int, ...]
    """Data-parallel indices that used them in ``step``."""
    ranks: tuple[int, ...]
    """One rank of each index and node."""


@dataclass(frozen=True)
class DuplicateWatch:
    """The watch's state. Steps are fed in order."""

    _window: tuple[tuple[int, frozenset[bytes]], ...] = ()
    """The newest steps and all their fingerprints."""

    def observe(self, step: int, uses: Sequence[store.SamplesUsed]) -> tuple["DuplicateWatch", Duplicate | None]:
        """Return the next state and what is wrong with the samples of ``step``, if anything is."""
        if not uses:
            return self, None
        fingerprints = frozenset(use.fingerprint for use in uses)
        watch = DuplicateWatch((*self._window, (step, fingerprints))[-WINDOW_STEPS:])
        return watch, _shared(step, uses) or self._repeated(step, uses, fingerprints)

    def back_to(self, step: int) -> "DuplicateWatch":
        """Forget the steps after ``step``: they are undone."""
        return DuplicateWatch(tuple(seen for seen in self._window if seen[0] <= step))

    def _repeated(
        self, step: int, uses: Sequence[store.SamplesUsed], fingerprints: frozenset[bytes]
    ) -> Duplicate | None:
        for earlier_step, known in reversed(self._window):
            if not known.isdisjoint(fingerprints):
                return _duplicate(step, earlier_step, [use for use in uses if use.fingerprint in known])
        return None


def _shared(step: int, uses: Sequence[store.SamplesUsed]) -> Duplicate | None:
    indices: dict[bytes, set[int]] = {}
    for use in uses:
        indices.setdefault(use.fingerprint, set()).add(use.dp)
    shared = [use for use in uses if len(indices[use.fingerprint]) > 1]
    return _duplicate(step, step, shared) if shared else None


def _duplicate(step: int, earlier_step: int, uses: Sequence[store.SamplesUsed]) -> Duplicate:
    return Duplicate(
        step=step,
        earlier_step=earlier_step,
        indices=tuple(sorted({use.dp for use in uses})),
        ranks=tuple(sorted({use.rank for use in uses})),
    )

"""The share of the evaluation text that occurs in the training text: a check for contamination.

The measure is that of Brown et al., "Language Models are Few-Shot Learners" (2020), appendix C. There, text counts as
seen if 13 words in a row were seen. Here it is 13 tokens.

N-grams are compared by 64-bit hashes. With token ids t and an odd constant C,
``hash(i) = sum over j < n of (t[i + j] + 1) * C**(j + 1)  mod 2**64``. Prefix sums give this for all places of a chunk,
at a cost that does not depend on n.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast_hooks import ConfigurationError
from holdfast_trainer.data.token_file import TokenSpan

Hashes = NDArray[np.uint64]

_MULTIPLIER = 0x9E3779B97F4A7C15
_MOST_KEPT = 1 << 22
"""Number of n-grams of the evaluation text that are kept, approximately. Each takes up to 60 bytes."""
_CELLS_PER_HASH = 16


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The result of the comparison."""

    ngram: int
    """Length of an n-gram in tokens."""
    share: float
    """Share of the evaluation text's n-grams that occur in the training text, 0 to 1."""
    compared: int
    """Number of n-grams of the evaluation text that were compared. Of a long text, these are a sample."""

    def __str__(self) -> str:
        return f"{self.share:.1%} of {self.compared:,} validation {self.ngram}-grams occur in the training text"

    def check(self, limit: float) -> None:
        """Raise ConfigurationError if the share is above ``limit``, which is ``data.overlap_limit``."""
        if self.share > limit:
            raise ConfigurationError(
                f"data.overlap_limit is {limit}, but {self}: give other data.validation or raise data.overlap_limit"
            )


def measure_overlap(training: TokenSpan, evaluation: TokenSpan, *, ngram: int) -> Overlap:
    """Compare the two texts. Each is read once, and memory is bounded, however long they are."""
    highest = _highest_kept(evaluation.count)
    kept = np.concatenate([np.empty(0, np.uint64), *_ngram_hashes(evaluation, ngram, highest)])
    known, counts = np.unique(kept, return_counts=True)
    seen = np.zeros(len(known), dtype=bool)
    prefilter = _Prefilter(known, highest)
    for hashes in _ngram_hashes(training, ngram, highest):
        candidates = prefilter.possible(hashes)
        places = np.searchsorted(known, candidates)
        places[places == len(known)] = 0
        seen[places[known[places] == candidates]] = True
    share = float(counts[seen].sum() / len(kept)) if len(kept) else 0.0
    return Overlap(ngram=ngram, share=share, compared=len(kept))


def cached_overlap(training: TokenSpan, evaluation: TokenSpan, *, ngram: int, folder: Path) -> Overlap:
    """Return :func:`measure_overlap`, and keep the result in ``folder``. One process at a time may call this."""
    path = folder / f"overlap-{ngram}.json"
    if (known := _read(path)) is not None:
        return known
    overlap = measure_overlap(training, evaluation, ngram=ngram)
    # By hand: the trainer, as any user's trainer, imports nothing of Holdfast but the hooks.
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(dataclasses.asdict(overlap)), encoding="utf-8")
    unfinished.rename(path)
    return overlap


def _read(path: Path) -> Overlap | None:
    """Return what an earlier run has measured; None if it has not, or if the file is damaged."""
    try:
        found = Overlap(**json.loads(path.read_text(encoding="utf-8")))
        is_sound = type(found.ngram) is int and type(found.compared) is int and 0 <= found.share <= 1
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None
    return found if is_sound else None


def _highest_kept(count: int) -> int:
    """Return the hash up to which n-grams are kept: both texts are sampled by it, so that equal n-grams meet."""
    return (2**64 - 1) * _MOST_KEPT // max(count, _MOST_KEPT)


class _Prefilter:
    """Sorts out most hashes that are not among the known ones, by a table with a cell for each range of hashes."""

    def __init__(self, known: Hashes, highest: int) -> None:
        cells = _CELLS_PER_HASH * max(len(known), 1)
        self._shift = np.uint64(max(highest.bit_length() - cells.bit_length(), 0))
        self._taken = np.zeros((highest >> int(self._shift)) + 1, dtype=bool)
        self._taken[known >> self._shift] = True

    def possible(self, hashes: Hashes) -> Hashes:
        possible: Hashes = hashes[self._taken[hashes >> self._shift]]
        return possible


def _ngram_hashes(span: TokenSpan, ngram: int, highest: int) -> Iterator[Hashes]:
    """Yield the hashes of all n-grams of the text, chunk by chunk, without those above ``highest``."""
    for tokens in span.chunks(overlap=ngram - 1):
        if len(tokens) >= ngram:
            hashes = _rolling_hashes(tokens.astype(np.uint64), ngram)
            yield hashes[hashes <= np.uint64(highest)]


def _rolling_hashes(tokens: Hashes, ngram: int) -> Hashes:
    """Return the hash of the n-gram at each place: shape [len(tokens) - ngram + 1]."""
    sums = np.zeros(len(tokens) + 1, dtype=np.uint64)
    np.cumsum((tokens + np.uint64(1)) * np.uint64(_MULTIPLIER) * _powers(_MULTIPLIER, len(tokens)), out=sums[1:])
    places = len(tokens) - ngram + 1
    return (sums[ngram:] - sums[:places]) * _powers(pow(_MULTIPLIER, -1, 2**64), places)


def _powers(base: int, count: int) -> Hashes:
    """Return base**0 .. base**(count - 1) modulo 2**64."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)

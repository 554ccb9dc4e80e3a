"""Judges from a sample what is worth doing with an array, at a small part of the cost of doing it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_RUNS = 32
_RUN_ELEMENTS = 256

Counts = NDArray[np.int64]
"""How often each value of a byte occurs: 256 numbers."""


def sample(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of some thousand elements: runs of neighbours from all over the array."""
    stride = array.size // _RUNS
    if stride <= _RUN_ELEMENTS:
        return array.copy()
    return array[: _RUNS * stride].reshape(_RUNS, stride)[:, :_RUN_ELEMENTS].ravel()


def count(plane: NDArray[np.uint8]) -> Counts:
    """Count the values of a byte plane."""
    return np.bincount(plane, minlength=256)


def entropy_bits(counts: Counts) -> float:
    """Return the bits per byte that a perfect code for bytes of these frequencies needs (Shannon, 1948)."""
    shares = counts[counts > 0] / counts.sum()
    return -float(shares @ np.log2(shares))

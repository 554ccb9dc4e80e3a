"""Estimates from a sample how well an array compresses, at a small part of the cost of compressing it.

The encoder has three ways to store a plane, and a choice between differences and plain numbers. To try them all would
cost much more than to encode once. A sample of 8192 elements of a chunk tells them apart.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_RUNS = 32
_RUN_ELEMENTS = 256
"""Elements of one run of a sample. Parts of a tensor differ, so 32 runs come from all over it; runs and not single
elements, because neighbours share cache lines."""

Counts = NDArray[np.int64]
"""How often each value of a byte occurs: shape (256,)."""


def sample(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of 8192 elements of an array of shape (n,), in runs of neighbours; of a small array, all."""
    stride = array.size // _RUNS
    if stride <= _RUN_ELEMENTS:
        return array.copy()
    return array[: _RUNS * stride].reshape(_RUNS, stride)[:, :_RUN_ELEMENTS].ravel()


def count(plane: NDArray[np.uint8]) -> Counts:
    """Return how often each value occurs in a byte plane."""
    return np.bincount(plane, minlength=256)


def entropy_bits(counts: Counts) -> float:
    """Return the bits per byte, 0 to 8, that a perfect code for bytes of these frequencies needs (Shannon, 1948)."""
    shares = counts[counts > 0] / counts.sum()
    return -float(shares @ np.log2(shares))

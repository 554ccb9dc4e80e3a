"""Whether memory already holds what is to be copied there: frozen parameters and buffers are not written again."""

import ctypes
from typing import TYPE_CHECKING

from holdfast_hooks.copy_threads import copy_threads

if TYPE_CHECKING:
    import torch

_SMALLEST_BYTES = 64 << 10
"""Copying less takes no longer than asking."""
_SAMPLES = 8
_SAMPLE_BYTES = 64
"""A cache line."""

# Through ctypes, because that lets other threads run meanwhile.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def is_unchanged(place: "torch.Tensor", source: "torch.Tensor") -> bool:
    """Whether ``place``, which is contiguous, holds the very bytes of ``source``, a tensor of its shape and dtype.

    Says no without looking if ``source`` is small or scattered. Compares contents, because torch's version
    counters miss what is written through ``.data``; a few cache lines first, as they tell most tensors that
    were trained.
    """
    nbytes = place.nbytes
    if nbytes < _SMALLEST_BYTES or not source.is_contiguous():
        return False
    a, b = place.data_ptr(), source.data_ptr()
    stride = (nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1)
    if any(_memcmp(a + offset, b + offset, _SAMPLE_BYTES) for offset in range(0, _SAMPLES * stride, stride)):
        return False
    return _is_equal(a, b, nbytes)


def _is_equal(a: int, b: int, nbytes: int) -> bool:
    """Compare on as many cores as torch copies with: on one it would take longer than copying."""
    import torch

    threads = torch.get_num_threads()
    part_bytes = -(-nbytes // threads)

    def is_part_equal(start: int) -> bool:
        return not _memcmp(a + start, b + start, min(part_bytes, nbytes - start))

    starts = range(0, nbytes, part_bytes)
    others = copy_threads().map(is_part_equal, starts[1:]) if len(starts) > 1 else ()
    return is_part_equal(0) and all(others)

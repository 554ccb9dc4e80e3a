"""Whether memory already holds what is to be copied there: frozen parameters and buffers are not written again."""

import ctypes

from holdfast_hooks.copy_threads import copy_threads, number_of_threads

_SMALLEST_BYTES = 64 << 10
"""Copying less takes no longer than asking."""
_SAMPLES = 8
_SAMPLE_BYTES = 64
"""A cache line."""

# Through ctypes, because that lets other threads run meanwhile.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def is_unchanged(place: int, source: int, nbytes: int) -> bool:
    """Whether ``nbytes`` at the address ``place`` are those at ``source``.

    Says no without looking if they are few. Compares contents, because torch's version counters miss what is written
    through ``.data``; a few cache lines first, as they tell most tensors that were trained.
    """
    if nbytes < _SMALLEST_BYTES or _memcmp(place, source, _SAMPLE_BYTES):
        return False
    stride = (nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1)
    if any(_memcmp(place + offset, source + offset, _SAMPLE_BYTES) for offset in range(stride, nbytes, stride)):
        return False
    return _is_equal(place, source, nbytes)


def _is_equal(a: int, b: int, nbytes: int) -> bool:
    """Compare on as many cores as torch copies with: on one it would take longer than copying."""
    part_bytes = -(-nbytes // number_of_threads())

    def is_part_equal(start: int) -> bool:
        return not _memcmp(a + start, b + start, min(part_bytes, nbytes - start))

    starts = range(0, nbytes, part_bytes)
    others = copy_threads().map(is_part_equal, starts[1:]) if len(starts) > 1 else ()
    return is_part_equal(0) and all(others)

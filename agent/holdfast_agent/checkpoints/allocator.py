"""Keeps the C library from handing freed memory back to the kernel."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEPT_BYTES = 32 << 20  # the most that glibc takes for the second


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to some ten MiB of it.

    The kernel clears every page that it hands out: for buffers of a chunk, that come and go, as much work as encoding
    them. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)

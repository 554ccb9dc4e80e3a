"""Pages of memory that is shared between processes."""

import ctypes
import mmap

_MADV_POPULATE_READ = 22

# Through ctypes, because mmap.madvise() keeps all other threads from running.
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_pages(memory: memoryview) -> None:
    """Map the pages of ``memory``, a part of a mapped file, into this process at once, for reading and writing.

    Mapped one by one, when they are touched, they take as long as copying them. Kernels before 5.14 do it like that.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = address - address % mmap.PAGESIZE
    _madvise(start, address + len(memory) - start, _MADV_POPULATE_READ)

"""Writes the files of a profile: complete, or not at all, and for this user alone."""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from holdfast_base.files import replacement

LEAST_FREE_BYTES = 1 << 30
"""Room that a profile needs on its disk. torch writes all events uncompressed first, and the run needs the disk too."""

_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64


class ProfileFileError(Exception):
    """A file of a profile cannot be written. The message is one line."""


def expect_room(folder: Path) -> None:
    """Raise ProfileFileError if the disk of ``folder`` is nearly full."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ProfileFileError(f"{folder}: {error.strerror}: the profile needs this folder") from None
    if free < LEAST_FREE_BYTES:
        raise ProfileFileError(
            f"{folder} has {free >> 20} MiB free, and a profile needs {LEAST_FREE_BYTES >> 20} MiB: free space"
        )


def write_compressed(path: Path, write: Callable[[Path], None], *, is_complete: Callable[[bytes], bool]) -> None:
    """Write a file by ``write``, and compress it into ``path``.

    Args:
        write: writes to a path. torch reports no error if a disk is full.
        is_complete: tells from the last bytes whether all was written.

    Raises ProfileFileError; then there is no file.
    """
    raw = path.with_name(f"{path.name}.raw")
    try:
        write(raw)
        _expect_complete(raw, is_complete)
        with replacement(path) as partial:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # The name of the raw file stays out of the header: viewers would show it.
            with (
                raw.open("rb") as source,
                os.fdopen(descriptor, "wb") as target,
                gzip.GzipFile(filename="", mode="wb", compresslevel=3, fileobj=target) as packed,
            ):
                shutil.copyfileobj(source, packed, _CHUNK_BYTES)
    except OSError as error:
        raise ProfileFileError(f"{path}: {error.strerror or error}: free space, or raise the limit") from None
    finally:
        raw.unlink(missing_ok=True)


def _expect_complete(raw: Path, is_complete: Callable[[bytes], bool]) -> None:
    size = raw.stat().st_size if raw.exists() else 0
    tail = b""
    if size:
        with raw.open("rb") as file:
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
    if not is_complete(tail):
        free = shutil.disk_usage(raw.parent).free
        raise ProfileFileError(
            f"{raw.parent}: torch wrote {size >> 20} MiB and not all, with {free >> 20} MiB free now: "
            "free space, raise the limit on file sizes (ulimit -f), or profile fewer steps"
        )

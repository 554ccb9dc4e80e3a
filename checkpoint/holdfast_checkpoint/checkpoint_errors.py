"""Errors of checkpoints, in words for the user."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from holdfast_base.files import UnfitFileError

_ROOM = "free space there or set {setting} to a larger file system"
_WRITABLE = "make it writable for the user of the agent or set {setting} to a directory that is"
_FOLDER = "set {setting} to a directory, not to a file or a path below one"

_FIXES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the file size limit (ulimit -f) or set {setting} to another file system",
    errno.EROFS: _WRITABLE,
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EEXIST: _FOLDER,
    errno.ENOTDIR: _FOLDER,
}


class CheckpointError(Exception):
    """A checkpoint could not be read, written or committed. The message is one line, with the fix if it is known."""


class CheckpointUnreadable(CheckpointError):  # noqa: N818 - a state of the checkpoint, as in store.proto
    """A checkpoint does not read back as it was written. The message names the file and the tensor.

    Waiting does not help: a start uses an older checkpoint instead.
    """


class CheckpointUnavailable(CheckpointError):  # noqa: N818 - likewise
    """A file of a checkpoint is missing or cannot be read now. The message names it.

    It may come back, for example when a file system is mounted again. So no checkpoint is replaced or removed for
    this error.
    """


class CheckpointCommitted(CheckpointError):  # noqa: N818 - likewise
    """The step is already committed in this history. A committed checkpoint is never written again."""


@contextlib.contextmanager
def write_errors(directory: Path, what: str = "the checkpoint", setting: str = "--checkpoints") -> Iterator[None]:
    """Turn an OSError from writing ``what`` below ``directory`` into a CheckpointError that names ``setting``."""
    try:
        yield
    except OSError as error:
        fix = _FIXES.get(error.errno or 0, "check the file system or set {setting} to another one")
        fix = fix.format(setting=setting)
        raise CheckpointError(f"cannot write {what} in {directory}: {error.strerror}: {fix}") from error


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn an OSError from reading ``path`` into CheckpointUnavailable: it does not mean damaged contents.

    A file that is too large, or none, is CheckpointUnreadable.
    """
    try:
        yield
    except UnfitFileError as error:
        raise CheckpointUnreadable(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise CheckpointUnavailable(f"{path}: {error.strerror}") from error

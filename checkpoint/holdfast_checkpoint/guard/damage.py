"""What can be wrong with a checkpoint, and the errors of reading it."""

import errno
from dataclasses import dataclass
from enum import StrEnum

_LONGEST_NAME = 120


class Reason(StrEnum):
    """Why a checkpoint is bad; also the label ``reason`` of the metrics."""

    DAMAGED = "damaged"
    """A file is cut off, missing, or does not read as its format says."""
    INCOMPLETE = "incomplete"
    """Its writer never finished it."""
    STALE = "stale"
    """Its model weights are those of the checkpoint before."""
    SHRUNK = "shrunk"
    """It lacks tensors, bytes or ranks of the checkpoint before."""
    NON_FINITE = "non_finite"
    """Model weights or optimizer state are NaN or infinite."""


@dataclass(frozen=True)
class DamageFound:
    """One thing that is wrong."""

    reason: Reason
    text: str
    is_final: bool = False
    """Whether more bytes in its files cannot make it right."""


class DamagedFileError(Exception):
    """A file is not what its format says. The message completes "FILE: ..."."""

    is_final = False
    """Whether a file is wrong even if its writer has not finished it."""


class UnsafePickleError(DamagedFileError):
    """A pickle would run code."""

    is_final = True


def printable(text: str) -> str:
    """Return a name out of a file as one short line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_NAME])


def has_vanished(error: OSError) -> bool:
    """Return whether an error says that a file is gone: removed, or replaced on a network file system."""
    return error.errno in (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)

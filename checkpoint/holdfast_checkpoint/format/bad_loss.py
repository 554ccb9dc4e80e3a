"""The record of a history whose newest checkpoints may hold a bad state: the run has ended at a bad loss.

::

    bad-loss-0002.json      of history 2, next to the history's own record

A start does not continue such a history by itself. ``--continue-from`` begins a new one, which has no such record.
"""

import dataclasses
from dataclasses import dataclass

from holdfast_checkpoint.format.sealed_json import seal, unseal_format

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class BadLossRecord:
    """Which checkpoints of a history may hold a bad state, and why."""

    from_step: int
    """First step of those checkpoints."""
    reason: str
    """Outcome of the run, for people."""
    since_unix_s: float = 0.0
    """Unix time at which the run ended."""

    def encode(self) -> bytes:
        """Return the record's file. The same record gives the same bytes."""
        return seal({"format": _FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def decode(cls, data: bytes) -> "BadLossRecord":
        """Invert :meth:`encode`. A damaged one is a record, too: its checkpoints must not be taken for good ones."""
        try:
            return cls(**unseal_format(data, _FORMAT))
        except (ValueError, LookupError, TypeError):
            return cls(from_step=0, reason="the record of a bad loss is damaged, or of another version")


def bad_loss_name(number: int) -> str:
    """Return the name of the record of a history."""
    return f"bad-loss-{number:04}.json"

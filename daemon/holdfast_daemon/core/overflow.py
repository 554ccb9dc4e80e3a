"""Tells an overflow loop, in which every step is skipped, from the odd skipped step that loss scaling brings."""

from dataclasses import dataclass

LIMIT_STEPS = 20
"""torch's GradScaler begins at 2^16 and halves at each overflow: after 20 in a row, at 2^-4, the scale is no cause."""


@dataclass(frozen=True)
class OverflowWatch:
    """The watch's state. Steps are fed in order."""

    _streak_steps: int = 0

    def observe(self, overflow: bool) -> tuple["OverflowWatch", bool]:
        """Return the next state, and whether a streak has just become a loop: once in each streak."""
        streak_steps = self._streak_steps + 1 if overflow else 0
        return OverflowWatch(streak_steps), streak_steps == LIMIT_STEPS

"""Learns which optimizers make up one step, from the order in which they step.

Most scripts have one optimizer: each of its steps is a step. A script with several (the two of a GAN, Muon next to
AdamW, one for each parameter in the backward pass) has made a step when the last of them has stepped. Which one is the
last shows when the first one steps again. Until then, and after a change, one step may count as two, or two as one.
"""

_LEAST_PATIENCE, _PATIENCE_EACH = 64, 16
"""Steps of the other optimizers, together, after which the last one of a cycle counts as one that steps no more."""
_MOST_MEMBERS = 65_536
"""A script that makes new optimizers all the time begins to be learned anew after so many."""


class StepCycle:
    """The optimizers of one step. An optimizer is a number: its ``id``."""

    def __init__(self) -> None:
        self._members: dict[int, None] = {}
        """The optimizers that step in turn, in the order in which they were met."""
        self._last = 0
        self._rare: set[int] = set()
        """Optimizers that have stopped to step regularly: they end no step."""
        self._others = 0
        """Steps of other optimizers since the last one has stepped."""

    @property
    def members(self) -> int:
        """Number of optimizers that make up a step."""
        return len(self._members)

    def ends_with(self, optimizer: int) -> bool:
        """Take in that an optimizer has stepped; return whether that ends a step."""
        if optimizer == self._last:
            self._others = 0
            return True
        if optimizer not in self._members and optimizer not in self._rare:
            return self._meet(optimizer)
        self._others += 1
        if self._others <= _LEAST_PATIENCE + _PATIENCE_EACH * len(self._members):
            return False
        self._drop_last(optimizer)
        return optimizer == self._last

    def _meet(self, optimizer: int) -> bool:
        if len(self._members) >= _MOST_MEMBERS:
            self._members.clear()
            self._rare.clear()
        is_first = not self._members
        self._members[optimizer] = None
        self._last, self._others = optimizer, 0
        return is_first

    def _drop_last(self, optimizer: int) -> None:
        """Do without the last member, which has not stepped for long while ``optimizer`` and others did."""
        self._others = 0
        del self._members[self._last]
        self._rare.add(self._last)
        if optimizer in self._rare:  # it was rare, and is the one that steps now
            self._rare.remove(optimizer)
            self._members[optimizer] = None
        self._last = next(reversed(self._members))

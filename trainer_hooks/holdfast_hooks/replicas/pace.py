"""How often to do something, and how much of it, within a share of the time."""

_LOWEST, _HIGHEST = -16, 3
_FIRST = 0


class Pace:
    """Doubles and halves the work per step, so that it takes ``budget_ratio`` of the time at most.

    Of two paces the slower one's steps are among the faster one's: it works on steps that are a multiple of a power
    of two, and on more than one portion a step only if it works on every step.
    """

    def __init__(self, budget_ratio: float) -> None:
        self._budget_ratio = budget_ratio
        self._level = _FIRST
        self._newest: tuple[int, float] | None = None

    @property
    def portions(self) -> int:
        """How much to do on a step that is due; 8 at most."""
        return int(2 ** max(0, self._level))

    @property
    def every(self) -> int:
        """How many steps lie between two that are due."""
        return int(2 ** max(0, -self._level))

    def is_due(self, step: int) -> bool:
        """Whether to work at ``step``."""
        return step % self.every == 0

    def worked(self, step: int, *, began_s: float, ended_s: float) -> None:
        """Adapt to what the work at ``step`` took; times are of a clock that only rises."""
        if self._newest is not None and step > self._newest[0]:
            step_s = (began_s - self._newest[1]) / (step - self._newest[0])
            load = (ended_s - began_s) / (self.every * step_s * self._budget_ratio)
            # Up only where twice the work still leaves as much room again: else it would go to and fro.
            change = -1 if load > 1 else int(load < 1 / 4)
            self._level = min(_HIGHEST, max(_LOWEST, self._level + change))
        self._newest = step, began_s

"""Commands that are due at the end of a certain step."""

from holdfast_hooks.telemetry.timeline import Timeline


class StepCommands:
    """Steps at whose end something is to be done, placed by the reporter and taken by the training thread.

    No lock is needed to tell whether an order came in time: the training thread first writes
    ``timeline.boundary`` and then takes the order; the reporter first places the order and then reads
    ``boundary``. Whoever comes second sees the other, and of two that remove an order only one gets it.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.due: dict[int, bool] = {}
        """By step; empty almost always."""

    def place(self, step: int) -> bool:
        """Ask for the end of ``step``; False if that has passed (reporter thread)."""
        self.due[step] = True
        too_late = self._timeline.boundary >= step
        return not (too_late and self.due.pop(step, False))

    def take(self, step: int) -> bool:
        """Whether something is due at the end of ``step``, once (training thread)."""
        return self.due.pop(step, False)


class ReleaseCommands:
    """Checkpoints whose pinned slots are to be let go of, each at the end of the same step on all ranks.

    Placed by the reporter, taken by the training thread. An order that comes too late is due at once.
    """

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        """Step at whose end, by the checkpoint's step; empty almost always."""

    def place(self, checkpoint: int, at_step: int) -> None:
        """Let go of the slot of ``checkpoint`` at the end of ``at_step`` (reporter thread)."""
        self._due[checkpoint] = at_step

    def due(self, step: int) -> list[int]:
        """Return the checkpoints whose slots are to go at the end of ``step``, until dropped (training thread)."""
        return [checkpoint for checkpoint, at_step in list(self._due.items()) if at_step <= step] if self._due else []

    def drop(self, checkpoint: int) -> None:
        """Forget an order that is carried out (training thread)."""
        self._due.pop(checkpoint, None)

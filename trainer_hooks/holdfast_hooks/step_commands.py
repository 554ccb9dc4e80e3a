"""Commands that the training thread carries out at the end of a certain step."""

from holdfast_hooks.telemetry.timeline import Timeline


class StepCommands:
    """Commands of one kind by the step at whose end they are due. The reporter places, the training thread takes.

    No lock decides whether a command came in time. The training thread writes ``timeline.boundary`` first and takes
    the command second. The reporter places the command first and reads ``boundary`` second. So whichever thread comes
    second sees what the other one did, and if both remove a command only one of them gets it.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.due: dict[int, bool] = {}
        """By step; empty almost always."""

    def place(self, step: int) -> bool:
        """Place a command for the end of ``step``; return False if that step is over (reporter thread)."""
        self.due[step] = True
        too_late = self._timeline.boundary >= step
        return not (too_late and self.due.pop(step, False))

    def take(self, step: int) -> bool:
        """Remove the command for the end of ``step``; return whether there was one (training thread)."""
        return self.due.pop(step, False)


class ReleaseCommands:
    """Commands to release the pinned slots of checkpoints, each at the end of the same step on all ranks.

    The reporter places them, the training thread carries them out. A command that comes too late is due immediately.
    """

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        """Step at whose end to release, by the checkpoint's step; empty almost always."""

    def place(self, checkpoint: int, at_step: int) -> None:
        """Place a command to release the slot of ``checkpoint`` at the end of ``at_step`` (reporter thread)."""
        self._due[checkpoint] = at_step

    def due(self, step: int) -> list[int]:
        """Return the checkpoints whose slots to release at the end of ``step``, until dropped (training thread)."""
        return [checkpoint for checkpoint, at_step in list(self._due.items()) if at_step <= step] if self._due else []

    def drop(self, checkpoint: int) -> None:
        """Forget a command that has been carried out (training thread)."""
        self._due.pop(checkpoint, None)

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

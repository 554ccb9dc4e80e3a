"""Judges from the newest steps whether a rank's own work on its GPU is separated from its waiting.

A rank is compared with others if the time of half of its steps is known (the detector `straggler`). So that decides
here, too, over stretches of at least WINDOW_STEPS steps. The first answer comes earlier: some loops begin with steps
that nobody can separate, while wrappers are looked for.
"""

from holdfast_proto.v1 import common_pb2 as common

WINDOW_STEPS = 8
"""Steps of a stretch, at least."""
FIRST_UNKNOWN_STEPS = 3
"""Steps at the start of a loop that may be unknown although later ones are not."""

Answer = tuple["common.OwnTimeSource", str]
"""The source of a rank's own time; with OWN_TIME_SOURCE_NONE the reason, else nothing."""

NOT_YET: Answer = (common.OWN_TIME_SOURCE_UNSPECIFIED, "")
_EVENTS: Answer = (common.OWN_TIME_SOURCE_EVENTS, "")


class Separation:
    """The answer for one rank. It is one value, so that a thread that reads it never sees a half."""

    def __init__(self) -> None:
        self.answer = NOT_YET
        self._known = 0
        self._unknown = 0
        self._is_final = False

    def look(self, known_steps: int, unknown_steps: int, why_unknown: str) -> None:
        """Take in how many steps of the loop are known and unknown so far, and why the newest unknown one is."""
        known, unknown = known_steps - self._known, unknown_steps - self._unknown
        if self.answer == NOT_YET:
            if not known and unknown <= FIRST_UNKNOWN_STEPS:
                return
            is_separated = known > 0
        elif known + unknown < WINDOW_STEPS:
            return
        else:
            is_separated = known >= unknown
        self._known, self._unknown = known_steps, unknown_steps
        if self._is_final:
            return
        if is_separated:
            self.answer = _EVENTS
        elif self.answer[0] != common.OWN_TIME_SOURCE_NONE:  # the first reason stays: it may change in each step
            self.answer = (common.OWN_TIME_SOURCE_NONE, why_unknown)

    def fail(self, why: str) -> None:
        """Note that nothing is measured from now on."""
        self._is_final = True
        self.answer = (common.OWN_TIME_SOURCE_NONE, why)

"""The description of an odd run: what it does, and for how long."""

from dataclasses import dataclass, replace
from enum import StrEnum

from .patience import FACTOR, Sign, Where, report_s, restart_s

ODD_STEP = 20
"""Step with the pause. The deadlines are learned by then."""
STEPS = 40
STEPS_OUTSIDE, STEPS_THROUGHOUT = 220, 700
"""Steps of a run that is paused from outside, and of one that trains while something else is paused.

Both are long enough to train on after the pause."""


class Place(StrEnum):
    """The place in the training script where the pause is."""

    STEP = "in a step"
    BEFORE_ATTACH = "before attach"
    BEFORE_STEPS = "before the first step"
    AFTER_LOOP = "after the loop"
    AFTER_CLOSE = "after close"
    AT_EXIT = "in an exit handler"
    IN_THREAD = "in a thread that outlives the main thread"
    OUTSIDE = "outside"
    """Another process pauses the run: ``activity`` is a key of ``outside.ACTIONS``."""


ENDS = (Place.AFTER_LOOP, Place.AFTER_CLOSE, Place.AT_EXIT, Place.IN_THREAD)


@dataclass(frozen=True, kw_only=True)
class Twin:
    """How a twin differs from its control. By default it pauses in the same way, forever."""

    activity: str | None = None
    sign: Sign | None = None
    by: tuple[int, ...] | None = None
    from_last_move: bool = False
    """Whether the deadline counts from the last move that the rank logged, and not from the beginning of the pause."""


@dataclass(frozen=True, kw_only=True)
class OddCase:
    """A healthy run with an unusual moment."""

    name: str
    activity: str
    sign: Sign
    lasts_s: float
    """Seconds of the pause, or of each pause."""
    by: tuple[int, ...] = ()
    """Ranks that pause. Empty: all ranks."""
    ranks: int = 2
    place: Place = Place.STEP
    phase: str = ""
    """Name of the phase that the script marks. Empty: it marks none."""
    waiters: str = "all_reduce"
    """Way in which all ranks meet after the pause: a key of ``meetings.MEETINGS``."""
    steps: tuple[int, ...] = (ODD_STEP,)
    """Steps with the pause. The pause of the twin's last one never ends."""
    factor: float = FACTOR
    preset: str = "fast"
    notes: int = 1
    """Largest number of incidents that is allowed."""
    outlasts_report: bool = True
    """Whether the pause is longer than the report deadline. False if report and restart coincide."""
    heavy: bool = False
    """Whether the run loads the machine, so that only one such run goes at a time."""
    trains_throughout: bool = False
    """Whether the ranks train all the time, because something else is paused."""
    twin: Twin = Twin()

    @property
    def where(self) -> Where:
        """The moment that decides which report deadline applies."""
        if self.ends_late:
            return Where.END
        if self.place in (Place.BEFORE_ATTACH, Place.BEFORE_STEPS) or self.steps == (0,):
            return Where.START
        if self.steps == (1,):
            return Where.SECOND_STEP
        return Where.OCCASIONAL if self.phase in ("EVAL", "CHECKPOINT", "IDLE") else Where.STEP

    @property
    def report_deadline_s(self) -> float:
        """Seconds until the pause is reported."""
        return report_s(self.where, self.preset)

    @property
    def restart_deadline_s(self) -> float:
        """Seconds until a restart. It never comes before the report."""
        return max(self.report_deadline_s, restart_s(self.sign, self.preset, self.factor))

    @property
    def last_step(self) -> int:
        """Number of the last step."""
        if self.place is Place.OUTSIDE:
            return (STEPS_THROUGHOUT if self.trains_throughout else STEPS_OUTSIDE) - 1
        return max(STEPS, max(self.steps) + STEPS // 2) - 1

    @property
    def ends_late(self) -> bool:
        """Whether the run's result is decided before the pause. If so, the twin is ended and not restarted."""
        return self.place in ENDS

    def culprits(self) -> tuple[int, ...]:
        """Return the ranks that pause."""
        return self.by or tuple(range(self.ranks))

    def as_twin(self) -> "OddCase":
        """Return the case that the twin plays."""
        return replace(
            self,
            activity=self.twin.activity or self.activity,
            sign=self.twin.sign or self.sign,
            by=self.by if self.twin.by is None else self.twin.by,
        )

    def check(self) -> None:
        """Assert that the pause is between the two deadlines."""
        assert self.lasts_s < self.restart_deadline_s, self.name
        assert self.lasts_s > self.report_deadline_s or not self.outlasts_report, self.name

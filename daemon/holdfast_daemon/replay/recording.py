"""Keeps the newest minute of what the core was shown, so that a verdict can be reached again from it.

A recording begins with a state of the core, which costs nothing to keep because states are never changed. It continues
with what each tick was shown. A new one begins every half minute; the last two are kept.
"""

from collections import deque
from dataclasses import dataclass, field

from holdfast_core.model import CoreState, Observation
from holdfast_daemon.replay.recorded_tick import difference, framed

STRETCH_S = 30.0
ROOM_BYTES = 64 * 2**20


@dataclass
class _Stretch:
    """A state of the core and the ticks that followed it, oldest first, each as it is written in a file."""

    base: CoreState
    began_unix_s: float
    ticks: list[bytes] = field(default_factory=list)
    nbytes: int = 0


@dataclass(frozen=True)
class Excerpt:
    """What the recording holds at one moment: a state of the core, and the ticks that followed it."""

    base: CoreState
    ticks: tuple[bytes, ...]


class Recording:
    """The newest ticks of one run's core. ``room_bytes`` is for the ticks; the two states are not counted."""

    def __init__(self, room_bytes: int = ROOM_BYTES) -> None:
        self._room_bytes = room_bytes
        self._stretches: deque[_Stretch] = deque(maxlen=2)
        self.dropped_ticks_total = 0
        """Ticks that were dropped before their time, because there was no room."""

    def note(self, state: CoreState, now: float, observation: Observation) -> None:
        """Keep what the core is shown in the tick that it is about to run on ``state``."""
        tick = framed(difference(state.nodes, now, observation))
        while self._stretches and self._nbytes + len(tick) > self._room_bytes:
            self.dropped_ticks_total += len(self._stretches.popleft().ticks)
        if not self._stretches or now - self._stretches[-1].began_unix_s >= STRETCH_S:
            self._stretches.append(_Stretch(state, now))
        newest = self._stretches[-1]
        newest.ticks.append(tick)
        newest.nbytes += len(tick)

    def forget(self) -> None:
        """Begin again: the core continues from a state that its last tick has not led to."""
        self._stretches.clear()

    def excerpt(self) -> Excerpt | None:
        """Return what is kept; None if there is nothing."""
        if not self._stretches:
            return None
        ticks = tuple(tick for stretch in self._stretches for tick in stretch.ticks)
        return Excerpt(self._stretches[0].base, ticks)

    @property
    def _nbytes(self) -> int:
        return sum(stretch.nbytes for stretch in self._stretches)

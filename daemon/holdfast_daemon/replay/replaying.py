"""Runs the core over a recording: does it reach the verdict again?"""

from dataclasses import dataclass

from holdfast_core import coordinator
from holdfast_daemon.incidents.archive import same_data, same_verdict
from holdfast_daemon.incidents.incident_folder import RecordedIncident
from holdfast_daemon.replay.recorded_tick import observation_of
from holdfast_proto.v1.store_pb2 import Verdict


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The verdict on record and the one reached again."""

    recorded: Verdict
    """Verdict of the story, with all evidence."""
    reached: Verdict
    """Verdict as it was when it was reached."""
    replayed: Verdict | None
    """None: the core of this version reaches no such incident."""
    ticks: int
    span_s: float
    """Seconds that the recording covers."""

    @property
    def agrees(self) -> bool:
        """Whether all data of the verdict is the same, and the story names its kind, culprits and call."""
        if self.replayed is None:
            return False
        return same_data(self.reached, self.replayed) and same_verdict(self.recorded, self.replayed)


def replay(recorded: RecordedIncident) -> Replay:
    """Show the core every recorded tick, as the shell once did. Raises CodecError if a tick cannot be read."""
    state = recorded.base
    for tick in recorded.ticks:
        state, _ = coordinator.step(state, tick.now_unix_s, observation_of(state.nodes, tick))
    incident = state.incidents.get(recorded.incident.id)
    times = [tick.now_unix_s for tick in recorded.ticks]
    return Replay(
        recorded=recorded.incident.verdict,
        reached=recorded.verdict,
        replayed=incident.verdict if incident is not None else None,
        ticks=len(times),
        span_s=times[-1] - times[0] if times else 0.0,
    )

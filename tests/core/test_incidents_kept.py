"""However many incidents a run has, its state and its store hold the newest ones and those that are not over."""

from holdfast_core import coordinator, incidents
from holdfast_core.model import ForgetIncident, SaveIncident
from holdfast_core.tick import Tick
from holdfast_proto.v1 import store_pb2 as store

MANY = 10_000


def test_ten_thousand_incidents_later_the_newest_and_the_open_ones_are_left() -> None:
    tick = Tick(coordinator.begin(store.RunSpec(run="r", nodes=1, ranks_per_node=2)), now=5.0)
    opened = incidents.open_incident(
        tick, store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, culprits=[1]), last_progress_unix_s=4.0
    )
    for number in range(1, MANY):
        tick.now = 5.0 + number
        newest = incidents.note_incident(tick, store.Verdict(kind=store.VERDICT_KIND_STRAGGLER))
    kept = tick.state.incidents
    numbers = sorted(int(name.partition("-")[0]) for name in kept)
    assert numbers == [1, *range(MANY - incidents.INCIDENTS_KEPT + 2, MANY + 1)]
    assert (opened.id in kept, newest.id in kept, tick.record.incident_count) == (True, True, MANY)
    saved = {action.incident.id for action in tick.actions if isinstance(action, SaveIncident)}
    forgotten = [action.incident for action in tick.actions if isinstance(action, ForgetIncident)]
    assert (sorted(forgotten), len(forgotten)) == (sorted(saved - kept.keys()), MANY - incidents.INCIDENTS_KEPT)


def test_an_open_incident_is_forgotten_once_it_is_over() -> None:
    tick = Tick(coordinator.begin(store.RunSpec(run="r", nodes=1, ranks_per_node=2)), now=5.0)
    verdict = store.Verdict(kind=store.VERDICT_KIND_DEAD_RANK, culprits=[1])
    first = incidents.open_incident(tick, verdict, last_progress_unix_s=4.0)
    for number in range(1, incidents.INCIDENTS_KEPT + 1):
        tick.now = 5.0 + number
        incidents.note_incident(tick, store.Verdict(kind=store.VERDICT_KIND_STRAGGLER))
    assert first.id in tick.state.incidents
    incidents.close(tick, store.INCIDENT_STATE_RECOVERED, "training again")
    assert tick.state.incidents[first.id].state == store.INCIDENT_STATE_RECOVERED
    incidents.note_incident(tick, store.Verdict(kind=store.VERDICT_KIND_STRAGGLER))
    assert first.id not in tick.state.incidents

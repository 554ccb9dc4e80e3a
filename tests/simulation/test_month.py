"""A month of 10,000 ranks: nothing that the core and its shell keep grows between the tenth day and the thirtieth."""

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from holdfast_core import incidents
from holdfast_core.accounting import phase_watch
from holdfast_core.model import Action, Observation
from holdfast_daemon.clock import Clock
from holdfast_daemon.history.history_file import HistoryFile
from holdfast_daemon.history.history_writer import HistoryQueue
from holdfast_daemon.incidents import incident_folder
from holdfast_daemon.incidents.archive import IncidentArchive, IncidentLog
from holdfast_daemon.leadership.guarded_core import GuardedCore
from holdfast_daemon.leadership.leadership import Leadership
from holdfast_daemon.leadership.outbox import Outbox, Outlets, StoreCounters
from holdfast_daemon.leadership.requests import Requests
from holdfast_daemon.leadership.run_store import RunStore
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_daemon.notify.run_notifier import RunNotifier
from holdfast_proto import keys
from tests.simulation.long_run import LongRun, live_through_day
from tests.simulation.object_sizes import sizes_of
from tests.support.memory_store import MemoryStore

SETTLED, END = 10, 30
"""Days: by the first, all that is bounded has reached its bound."""


VARY = {
    r"\.evidence_(from|asked)": 1250,  # nodes
    r"\.watched": phase_watch.MOST_STRETCHES,
    r"\._marks": 128,
    r"\.incidents\[\]\.actions": incidents.INCIDENTS_KEPT * incidents.MOST_LINES,
    r"\.incidents\[\]\.evidence": incidents.INCIDENTS_KEPT * incidents.MOST_FILES_NAMED,
}
"""End of a way -> most items: these depend on the last trouble, or have not reached their bound after ten days."""


def bound(way: str) -> int:
    """Return the most items on a way that may grow after ten days; 0 for all others."""
    return max((most for end, most in VARY.items() if re.search(f"{end}$", way)), default=0)


class RunClock(Clock):
    """Shows the time of a run."""

    run: LongRun

    def now(self) -> float:
        return self.run.now


class QuietStore(MemoryStore):
    """Keeps no commands: a real server bounds their streams, and this one does not."""

    def append(self, *_: object) -> int:
        return 1


class Leader:
    """The parts of a daemon that lead the run, with a store in memory."""

    def __init__(self, run: LongRun, folder: Path) -> None:
        clock = RunClock()
        clock.run = self.run = run
        self.kept = QuietStore(clock)
        self.kept.set(keys.spec("r"), run.spec.SerializeToString())
        self.loop = asyncio.new_event_loop()
        self.store = RunStore(self.kept.connect(), "r", "daemon")
        self.leadership = Leadership("r", self.store, lease_s=1e9)
        self.core = GuardedCore("r")
        self.archive = IncidentArchive(folder, "r")
        self.history = HistoryQueue("r", HistoryFile(folder, "r"), lambda: None)
        self.notifier = RunNotifier("r", folder)
        self.requests = Requests()
        outlets = Outlets(
            store=self.store,
            log=IncidentLog(folder, "r"),
            archive=self.archive,
            requests=self.requests,
            metrics=TickMetrics(CollectorRegistry()),
            history=self.history,
        )
        self.outbox = Outbox("r", outlets, StoreCounters())
        self.loop.run_until_complete(self.leadership.hold(run.state, run.now))

    def decide(self, now: float, observation: Observation) -> list[Action]:
        """Do what a daemon does in a tick, and return what the core has decided."""
        return self.loop.run_until_complete(self._decide(now, observation))

    async def _decide(self, now: float, observation: Observation) -> list[Action]:
        run, before = self.run, self.run.state
        self.archive.recording.note(before, now, observation)
        stepped = self.core.step(before, now, observation)
        assert stepped.error is None, stepped.error
        run.state = stepped.state
        self.outbox.add(stepped.actions, instance="i", record_has_changed=run.state.record != before.record)
        self.history.see_state(run.state, now)
        await self.outbox.drain(self.leadership, run.state.record)
        self.notifier.see(run.state, now)
        await asyncio.sleep(0)
        return stepped.actions

    def sizes(self) -> Counter[str]:
        """Return the sizes of all that the daemon keeps of the run, once the history has been written."""
        self.history.write()
        sizes = sizes_of("state", self.run.state)
        for name in ("core", "archive", "outbox", "requests", "notifier", "history", "leadership"):
            sizes.update(sizes_of(name, getattr(self, name)))
        return sizes

    def stored_bytes(self) -> tuple[int, int]:
        """Return the bytes of the record and of all incidents in the store."""
        stored = self.kept.hgetall(keys.incidents("r")).values()
        return len(self.kept.get(keys.state("r")) or b""), sum(map(len, stored))


@pytest.mark.system
@pytest.mark.timeout(300)
def test_nothing_grows_between_the_tenth_day_and_the_thirtieth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_folder, "write_recording", lambda *_, **__: None)  # of 10,000 ranks it takes seconds
    run = LongRun()
    leader = Leader(run, tmp_path)
    run.decide = leader.decide
    run.until("starting")
    run.tick()
    run.train_on(2)
    for day in range(SETTLED):
        live_through_day(run, day)
    settled, (settled_record, settled_incidents) = leader.sizes(), leader.stored_bytes()
    for day in range(SETTLED, END):
        live_through_day(run, day)
    sizes, (record, stored) = leader.sizes(), leader.stored_bytes()
    assert {way: size for way, size in sizes.items() if size > max(settled[way], bound(way))} == {}
    assert (record <= settled_record + 64, stored <= settled_incidents * 1.05) == (True, True)

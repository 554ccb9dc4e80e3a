"""A month of 10,000 ranks: nothing that the core and its shell keep grows after the first days.

In the first twenty days the run starts again each other day. In the last ten it does not: a generation may last long.
"""

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from holdfast_core import incidents
from holdfast_core.accounting import phase_watch
from holdfast_core.checkpointing import replicas
from holdfast_core.detectors.speed.memory_creep import BLOCKS
from holdfast_core.model import Action, Observation
from holdfast_core.nodes import node_faults
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
from holdfast_daemon.replay.recording import ROOM_BYTES
from holdfast_proto import keys
from tests.simulation.long_run import LongRun, live_through_day
from tests.simulation.object_sizes import sizes_of
from tests.support.memory_store import MemoryStore
from tests.support.run_keys import KnownKey, sealed_spec

HARMED, HARMED_LONG, LONG, LONGER = 10, 20, 25, 30
"""Days at whose ends the sizes are compared: the first two with each other, and the last two."""
STEPS, MANY_STEPS = 30, 64
"""Steps of a day. They must fill the longest window, of 256 steps: by day 9, and again by day 25 without a restart."""


VARY = {
    r"\.evidence_(from|asked)": 2 * 1250,  # nodes
    r"\.watched": 2 * phase_watch.MOST_STRETCHES,
    r"\._marks": 2 * 128,
    r"\.witness_words": 2 * 8,
    r"\.record\.line\.starts": 2 * replicas.STARTS_KEPT,
    r"\._busy_s": 2 * 16,
    r"\._blocks": 2 * BLOCKS,
    r"\.least_bytes": 2 * (BLOCKS + 1) * 10_000,
    r"\.totals\.\w+": 64,  # kinds, causes and outcomes: each set of names is fixed
    r"\.record\.node_histories": 2 * node_faults.NODES_KEPT,
    r"\.node_histories\[\]\.faults": 2 * node_faults.NODES_KEPT * node_faults.FAULTS_KEPT,
    r"\.ticks(\[\])?": ROOM_BYTES,
    r"\.incidents\[\]\.actions": incidents.INCIDENTS_KEPT * incidents.MOST_LINES,
    r"\.incidents\[\]\.evidence": incidents.INCIDENTS_KEPT * incidents.MOST_FILES_NAMED,
}
"""End of a way -> most items, with those of the two states of a recording.

These depend on the last trouble, or reach their bound later than the others.
"""


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
        self.kept.set(keys.spec("r"), sealed_spec(run.spec))
        self.loop = asyncio.new_event_loop()
        self.store = RunStore(self.kept.connect(), "r", "daemon", KnownKey("r"))
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
def test_nothing_that_a_leader_keeps_grows_in_a_month_of_ten_thousand_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_folder, "write_recording", lambda *_, **__: None)  # of 10,000 ranks it takes seconds
    run = LongRun()
    leader = Leader(run, tmp_path)
    run.decide = leader.decide
    run.until("starting")
    run.tick()
    run.train_on(2)
    sizes, stored = {}, {}
    for day in range(1, LONGER + 1):
        is_calm = day > HARMED_LONG
        live_through_day(run, day, steps=MANY_STEPS if is_calm else STEPS, harm=not is_calm and day % 2 == 0)
        if day in (HARMED, HARMED_LONG, LONG, LONGER):
            sizes[day], stored[day] = leader.sizes(), leader.stored_bytes()
    assert (run.state.record.generation, run.state.record.incident_count > 1000) == (1 + HARMED_LONG // 2, True)
    for early, late in ((HARMED, HARMED_LONG), (LONG, LONGER)):
        known = sizes[early]
        assert {way: size for way, size in sizes[late].items() if size > max(known[way], bound(way))} == {}
    record, incidents_kept = zip(*stored.values(), strict=True)
    assert (max(record) - min(record) <= 1024, max(incidents_kept) <= incidents_kept[0] * 1.1) == (True, True), stored

"""The outbox: it writes the record before the commands, and a store that fails loses nothing."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from holdfast_base.redis_client import connect
from holdfast_core.model import Action, ForgetIncident, SaveIncident, Send
from holdfast_daemon.history.history_writer import HistoryWriter
from holdfast_daemon.incidents.archive import IncidentArchive, IncidentLog
from holdfast_daemon.leadership.leadership import Leadership
from holdfast_daemon.leadership.outbox import Outbox, Outlets, StoreCounters
from holdfast_daemon.leadership.requests import Requests
from holdfast_daemon.leadership.run_store import RunStore
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_proto.v1 import store_pb2 as store
from tests.support.run_keys import KnownKey


class Writes(RunStore):
    """A store that notes all writes, and fails when a test wants it."""

    def __init__(self) -> None:
        super().__init__(connect("unix:///no-store.sock"), "r", "daemon", KnownKey("r"))
        self.lease.fence = 7
        self.written: list[str] = []
        self.ids: list[str] = []
        self.fails = False

    async def save(
        self, record: store.CoordinatorState, incidents: Iterable[store.Incident] = (), forgotten: Iterable[str] = ()
    ) -> None:
        self._write(f"record {[one.id for one in incidents]}" + "".join(f" without {name}" for name in forgotten))

    async def send(self, node: str, command: store.NodeCommand) -> None:
        self.ids.append(command.id)
        self._write(f"{node} {command.instance} {command.fence}")

    def _write(self, what: str) -> None:
        if self.fails:
            raise OSError("unreachable")
        self.written.append(what)


@pytest.fixture
def writes() -> Writes:
    return Writes()


@pytest.fixture
def outbox(writes: Writes, tmp_path: Path) -> Outbox:
    outlets = Outlets(
        store=writes,
        log=IncidentLog(tmp_path, "r"),
        archive=IncidentArchive(tmp_path, "r"),
        requests=Requests(),
        metrics=TickMetrics(CollectorRegistry()),
        history=HistoryWriter(tmp_path).queue("r"),
    )
    return Outbox("r", outlets, StoreCounters())


def actions() -> list[Action]:
    stop = store.NodeCommand(stop=store.StopGeneration())
    return [Send("node0", stop), SaveIncident(store.Incident(id="0001-dead-rank"))]


async def test_the_record_and_its_incidents_are_written_before_the_commands(outbox: Outbox, writes: Writes) -> None:
    outbox.add(actions(), instance="i", record_has_changed=True)
    await outbox.drain(Leadership("r", writes, 2.0), store.CoordinatorState())
    assert writes.written == ["record ['0001-dead-rank']", "node0 i 7"]


async def test_a_forgotten_incident_leaves_the_store_although_a_new_lease_has_saved_all_others(
    outbox: Outbox, writes: Writes
) -> None:
    outbox.add([ForgetIncident("0001-dead-rank")], instance="i", record_has_changed=False)
    outbox.see_saved()
    for _ in range(2):
        await outbox.drain(Leadership("r", writes, 2.0), store.CoordinatorState())
    assert writes.written == ["record [] without 0001-dead-rank"]


async def test_of_several_actions_on_one_incident_the_last_counts(outbox: Outbox, writes: Writes) -> None:
    again = SaveIncident(store.Incident(id="0001-dead-rank"))
    outbox.add([ForgetIncident("0001-dead-rank"), again], instance="i", record_has_changed=False)
    outbox.add([again, ForgetIncident("0002-dead-rank")], instance="i", record_has_changed=False)
    await outbox.drain(Leadership("r", writes, 2.0), store.CoordinatorState())
    assert writes.written == ["record ['0001-dead-rank'] without 0002-dead-rank"]


async def test_a_command_whose_writing_failed_is_written_again_under_the_same_id(
    outbox: Outbox, writes: Writes
) -> None:
    leadership = Leadership("r", writes, 2.0)
    outbox.add(actions()[:1], instance="i", record_has_changed=False)
    writes.fails = True
    with pytest.raises(OSError, match="unreachable"):
        await outbox.drain(leadership, store.CoordinatorState())
    writes.fails = False
    await outbox.drain(leadership, store.CoordinatorState())
    assert writes.written == ["node0 i 7"]
    assert writes.ids[0] == writes.ids[1] != ""


async def test_a_record_that_could_not_be_written_is_written_with_the_next_tick(outbox: Outbox, writes: Writes) -> None:
    leadership = Leadership("r", writes, 2.0)
    outbox.add([], instance="i", record_has_changed=True)
    writes.fails = True
    with pytest.raises(OSError, match="unreachable"):
        await outbox.drain(leadership, store.CoordinatorState())
    writes.fails = False
    outbox.add([], instance="i", record_has_changed=False)
    await outbox.drain(leadership, store.CoordinatorState())
    await outbox.drain(leadership, store.CoordinatorState())
    assert writes.written == ["record []"]

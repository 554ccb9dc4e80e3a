"""Shells of real daemons, without the rest of the daemon."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from holdfast_daemon.daemon_options import DaemonOptions
from holdfast_daemon.history.history_writer import HistoryWriter
from holdfast_daemon.leadership.lease_keeper import LeaseKeeper
from holdfast_daemon.leadership.run_shell import RunShell
from holdfast_daemon.leadership.tick_metrics import TickMetrics
from holdfast_daemon.notify.run_notifier import RunNotifier
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import end, until
from tests.support.fake_agent import RUN, SPEC, FakeAgent
from tests.support.memory_store import MemoryStore
from tests.support.run_keys import opened, sealed_spec, write_key
from tests.support.store_server import StoreServer

Store = StoreServer | MemoryStore

LEASE_S = 3.0
"""Seconds of a lease: a leader on a busy machine keeps it, and a test can wait until it lapses."""


def options(folder: Path, url: str, name: str = "daemon-a", lease_s: float = LEASE_S) -> DaemonOptions:
    """Return the settings of a daemon that keeps its files in ``folder``. One name stands for one process."""
    control = folder / f"{name}.sock"
    write_key(folder, RUN)
    return DaemonOptions(
        name=name,
        process="0" * 16,
        store_url=url,
        directory=folder,
        control=control,
        metrics_address="127.0.0.1",
        metrics_port=0,
        lease_s=lease_s,
    )


class Daemon:
    """One shell and the task that runs it."""

    def __init__(self, shell: RunShell) -> None:
        self.shell = shell
        self.task = asyncio.create_task(shell.run())

    async def die(self) -> None:
        """Stop in the middle of whatever it does, lease and all."""
        await end(self.task)

    async def until_phase(self, phase: "store.RunPhase") -> None:
        """Wait until the run is in a phase."""
        await until(
            lambda: self.task.done() or (self.shell.state is not None and self.shell.state.record.phase == phase),
            f"the run is {store.RunPhase.Name(phase)}",
        )
        if self.task.done():
            self.task.result()

    @property
    def record(self) -> store.CoordinatorState:
        """The leader's record."""
        assert self.shell.state is not None
        return self.shell.state.record


@contextlib.asynccontextmanager
async def daemon(
    folder: Path,
    server: Store,
    name: str = "daemon-a",
    lease_s: float = LEASE_S,
    *,
    notifier: RunNotifier | None = None,
    keeper: LeaseKeeper | None = None,
) -> AsyncIterator[Daemon]:
    """Run a shell until the block ends, even if the shell has failed by then."""
    client = server.connect()
    histories, ticks = HistoryWriter(folder), TickMetrics(CollectorRegistry())
    settings = options(folder, "", name, lease_s)
    it = Daemon(
        RunShell(client, RUN, settings, server.clock, ticks, notifier=notifier, histories=histories, keeper=keeper)
    )
    try:
        yield it
    finally:
        await it.die()
        await asyncio.to_thread(histories.close)
        await client.aclose()


async def train(daemon: Daemon, agent: FakeAgent, steps: int = 1) -> None:
    """Let the run finish some steps, and wait until the daemon knows of them."""
    await until(lambda: agent.state.ranks, "the ranks have started")
    for _ in range(steps):
        agent.finish_step()
    newest = agent.state.ranks[0].progress.step - 1
    await until(lambda: daemon.task.done() or daemon.record.newest_step >= newest, f"step {newest} is known")


def publish_spec(server: Store, *, injection_allowed: bool = False) -> None:
    """Publish a run's spec as `holdfast run` does."""
    spec = store.RunSpec()
    spec.CopyFrom(SPEC)
    spec.injection_allowed = injection_allowed
    with server.client() as client:
        client.set(keys.spec(RUN), sealed_spec(spec))
        client.sadd(keys.RUNS, RUN)


def stored_record(server: Store) -> store.CoordinatorState | None:
    """Return the leader's record in the store."""
    with server.client() as client:
        data = client.get(keys.state(RUN))
    return store.CoordinatorState.FromString(opened(keys.state(RUN), data, run=RUN)) if data else None


def stored_incidents(server: Store) -> list[store.Incident]:
    """Return the incidents in the store, by id."""
    with server.client() as client:
        entries = client.hgetall(keys.incidents(RUN))
    assert isinstance(entries, dict)
    places = {keys.incident(RUN, name.decode()): data for name, data in entries.items()}
    found = [store.Incident.FromString(opened(place, data, run=RUN)) for place, data in places.items()]
    return sorted(found, key=lambda incident: incident.id)

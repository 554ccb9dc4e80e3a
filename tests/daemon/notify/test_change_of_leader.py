"""Shells of real daemons: what is reported to people when the leader dies and another daemon takes over."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_daemon.notify.run_notifier import RunNotifier
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import PATIENCE_S, until
from tests.support.fake_agent import RUN, SPEC, FakeAgent
from tests.support.memory_store import MemoryStore
from tests.support.receiver import Receiver, receiver
from tests.support.run_keys import sealed_spec
from tests.support.shells import Store, daemon, train
from tests.support.store_server import StoreServer
from tests.support.virtual_time import on_virtual_time


class PromptNotifier(RunNotifier):
    """Lets its daemon continue when all messages have arrived and the file is written.

    Both happen on threads, and no virtual time may pass for them.
    """

    def _contained(self, work: Callable[[], None]) -> None:
        super()._contained(work)
        if self._notified is not None:
            for queue in self._notified.queues:
                with queue._condition:
                    while queue._thread is not None:
                        assert queue._condition.wait(PATIENCE_S)
            self._notified.saver.finish(PATIENCE_S)


def publish(server: Store, service: Receiver) -> None:
    spec = store.RunSpec()
    spec.CopyFrom(SPEC)
    spec.notify.on.extend(["incident", "recovery", "failure", "end"])
    spec.notify.channels.add(name="hook", webhook=store.WebhookChannel(url=service.url))
    with server.client() as client:
        client.set(keys.spec(RUN), sealed_spec(spec))
        client.sadd(keys.RUNS, RUN)


async def reported(
    folder: Path, next_folder: Path, server: Store, place: MemoryStore | str, kind: type[RunNotifier]
) -> str:
    """Return what is reported of an incident that is open when the leader dies, one word for each message."""
    folders = folder, next_folder
    for each in folders:
        each.mkdir(exist_ok=True)
    with receiver() as service:

        def statuses() -> list[str]:
            return [one["status"] for one in service.notices()]

        publish(server, service)
        first_notifier, second_notifier = (kind(RUN, folder) for folder in folders)
        async with FakeAgent(place) as agent:
            async with daemon(folders[0], server, notifier=first_notifier) as first:
                await train(first, agent, steps=3)
                agent.end(1, signal=9)
                await until(statuses, "the incident is reported")
                await first.die()
            async with daemon(folders[1], server, "daemon-b", notifier=second_notifier) as second:
                await until(lambda: second.shell.leads, "the next daemon leads")
                await until(lambda: agent.state.generation == 2 and agent.state.ranks, "the ranks are started again")
                agent.finish_step()
                await until(lambda: statuses()[-1] == "resolved", "the recovery is reported")
                await asyncio.to_thread(second_notifier.wait_idle, 0.0)
    assert len({one["key"] for one in service.notices()}) == 1
    return " ".join(statuses())


@pytest.mark.parametrize(("second", "expected"), [("one", "open resolved"), ("another", "open open resolved")])
@on_virtual_time
async def test_the_next_leader_repeats_an_open_incident_if_it_does_not_know_what_was_reported(
    tmp_path: Path, second: str, expected: str
) -> None:
    memory = MemoryStore()
    assert await reported(tmp_path / "one", tmp_path / second, memory, memory, PromptNotifier) == expected


async def test_with_a_real_server_an_open_incident_is_repeated_at_most_once(
    store_server: StoreServer, tmp_path: Path
) -> None:
    said = await reported(tmp_path / "one", tmp_path / "another", store_server, store_server.url, RunNotifier)
    assert said in ("open resolved", "open open resolved")

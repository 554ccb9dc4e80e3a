"""Shells of real daemons: what is reported to people when the leader dies and another daemon takes over."""

import asyncio
from pathlib import Path

import pytest

from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import until
from tests.support.fake_agent import RUN, SPEC, FakeAgent
from tests.support.receiver import Receiver, receiver
from tests.support.shells import daemon, train
from tests.support.store_server import StoreServer

LEASE_S = 1.0


def publish(server: StoreServer, service: Receiver) -> None:
    spec = store.RunSpec()
    spec.CopyFrom(SPEC)
    spec.notify.on.extend(["incident", "recovery", "failure", "end"])
    spec.notify.channels.add(name="hook", webhook=store.WebhookChannel(url=service.url))
    with server.client() as client:
        client.set(keys.spec(RUN), spec.SerializeToString())
        client.sadd(keys.RUNS, RUN)


def reported(service: Receiver) -> list[tuple[str, str]]:
    return [(one["key"].rpartition("/")[2], one["status"]) for one in service.notices()]


@pytest.mark.parametrize(("second_folder", "repeated"), [("one", 0), ("another", 1)])
async def test_an_open_incident_is_repeated_at_most_once_by_the_next_leader(
    store_server: StoreServer, folder: Path, second_folder: str, repeated: int
) -> None:
    for name in ("one", "another"):
        (folder / name).mkdir()
    with receiver() as service:
        publish(store_server, service)
        async with FakeAgent(store_server.url) as agent:
            async with daemon(folder / "one", store_server, lease_s=LEASE_S) as first:
                await train(first, agent, steps=3)
                agent.end(1, signal=9)
                await until(lambda: reported(service), "the incident is reported")
                await first.die()
            async with daemon(folder / second_folder, store_server, "daemon-b", lease_s=LEASE_S) as second:
                await until(lambda: second.shell.leads, "the next daemon leads")
                await until(lambda: agent.state.generation == 2 and agent.state.ranks, "the ranks are started again")
                agent.finish_step()
                await until(lambda: reported(service)[-1][1] == "resolved", "the recovery is reported")
                await asyncio.to_thread(second.shell.notifier.wait_idle, 0.0)
    statuses = [status for _, status in reported(service)]
    assert set(statuses[:-1]) == {"open"}
    assert len(statuses[:-1]) <= 1 + repeated
    assert len({key for key, _ in reported(service)}) == 1

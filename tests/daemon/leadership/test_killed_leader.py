"""A daemon in a process of its own, killed at moments that are hard for its successor."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.coroutines import until
from tests.support.daemons import daemon_process
from tests.support.fake_agent import FakeAgent
from tests.support.shells import publish_spec, stored_incidents
from tests.support.store_server import StoreServer

pytestmark = pytest.mark.system


@contextlib.contextmanager
def incidents_refused(server: StoreServer) -> Iterator[None]:
    """Let the store refuse incidents in the block, as if the leader died just before it wrote them."""
    with server.client() as operator:
        operator.execute_command("ACL LOG RESET")
        operator.execute_command("ACL SETUSER default -hset")
        try:
            yield
        finally:
            operator.execute_command("ACL SETUSER default +hset")


def has_refused(server: StoreServer) -> bool:
    with server.client() as operator:
        return bool(operator.execute_command("ACL LOG"))


def stories(server: StoreServer) -> list[list[str]]:
    """Return the message and the lines after it, of each incident."""
    return [
        [incident.verdict.message, *(action.what for action in incident.actions)]
        for incident in stored_incidents(server)
    ]


async def test_an_outage_of_checkpoints_is_one_incident_whenever_the_leader_is_killed_in_it(
    store_server: StoreServer, folder: Path
) -> None:
    publish_spec(store_server)
    async with FakeAgent(store_server.url) as agent:
        with incidents_refused(store_server), daemon_process(folder, store_server):
            agent.fail_checkpoint(49)
            await until(lambda: has_refused(store_server), "the incident is about to be kept")
        agent.fail_checkpoint(99)
        with daemon_process(folder, store_server):
            await until(lambda: (found := stories(store_server)) and found[0][1:], "both failures are reported")
            agent.commit_checkpoint(149)
            await until(lambda: len(stories(store_server)[0]) == 3, "the first commit is reported")
        agent.commit_checkpoint(199)
        agent.fail_checkpoint(249)
        with daemon_process(folder, store_server):
            await until(lambda: len(stories(store_server)) == 2, "the outage was over, so this is another one")
    assert stories(store_server) == [
        [
            "checkpoint of step 49 failed: no space left",
            "node node0: checkpoint of step 99 failed: no space left",
            "the checkpoint of step 149 is committed",
        ],
        ["checkpoint of step 249 failed: no space left"],
    ]
    assert [incident.id for incident in stored_incidents(store_server)] == [
        "0001-checkpoint-failed",
        "0002-checkpoint-failed",
    ]

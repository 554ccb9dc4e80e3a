"""A user of Redis that may use Holdfast's keys alone, with the rules of docs/tls.md, is enough for a run."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from holdfast_agent.reports.store_link import StoreLink
from holdfast_base.redis_client import StoreOutage, connect
from holdfast_cli.local_run.store import connect as connect_blocking
from holdfast_cli.local_run.store import publish_run
from holdfast_cli.observed_nodes.membership import Membership
from holdfast_cli.observed_nodes.store_view import StoreView
from holdfast_daemon.leadership.lease_keeper import RENEW
from holdfast_daemon.leadership.run_store import RunStore
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.support.coroutines import end
from tests.support.run_keys import KnownKey, seal_of
from tests.support.store_server import StoreServer

RUN, NODE = "run", "node0"
SPEC = store.RunSpec(run=RUN, nodes=1, ranks_per_node=1, instance="i")
PAGE = Path(__file__).parents[3] / "docs" / "tls.md"


def documented_rules() -> list[str]:
    """Return the rules of the user in the page's configuration of Redis, but the one with the password."""
    line = re.search(r"^user holdfast on >\S+ \S+ (~.*)\\\n(.*)", PAGE.read_text(), re.MULTILINE)
    assert line is not None
    return ["on", *line[1].split(), *line[2].split()]


@pytest.fixture
def limited(store_server: StoreServer, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """URL and password file of the user; afterwards, nothing was refused to it but what a test asked for."""
    password = tmp_path / "password"
    password.write_text("hunter2")
    with store_server.client() as operator:
        operator.execute_command("ACL", "SETUSER", "holdfast", "reset", *documented_rules(), ">hunter2")
        operator.execute_command("ACL", "LOG", "RESET")
        yield store_server.url.replace("unix://", "unix://holdfast@"), password
        operator.execute_command("ACL", "DELUSER", "holdfast")


def refusals(server: StoreServer) -> list[Any]:
    with server.client() as operator:
        found: Any = operator.acl_log()
    return [(one["reason"], one["object"]) for one in found]


async def test_daemon_agent_and_command_are_refused_nothing(
    store_server: StoreServer, limited: tuple[str, Path]
) -> None:
    with contextlib.closing(connect_blocking(*limited)) as blocking:
        publish_run(blocking, SPEC, KnownKey(RUN), lambda: None)
        client, other = connect(*limited), connect(*limited)
        await _lead_and_follow(RunStore(client, RUN, "daemon", KnownKey(RUN)), other, blocking)
        await client.aclose()
        await other.aclose()
        _observe(blocking)
    assert refusals(store_server) == []


async def _lead_and_follow(daemon: RunStore, client: Any, blocking: redis.Redis) -> None:
    outage = StoreOutage(logging.getLogger(__name__), "Redis", "the agent tries again")
    link = StoreLink(client, RUN, NODE, outage, KnownKey(RUN))
    link.serve(SPEC)
    assert await link.load_spec() == SPEC
    sender = asyncio.create_task(link.send_events())
    received: asyncio.Queue[str] = asyncio.Queue()

    async def handle(command: store.NodeCommand, _: int, entry_id: str) -> None:
        received.put_nowait(entry_id)

    receiver = asyncio.create_task(link.receive_commands("0", handle, lambda *_: None))
    for _ in range(2):  # the second takes the short way
        await link.publish_state(store.NodeState(node=NODE, run=RUN))
    link.emit(store.Event(checkpoint_failed=store.CheckpointFailed(step=1)))
    await link.flush(30)
    assert await link.publish_rendezvous(1, "host:1")
    assert await link.find_rendezvous(1, 30) == "host:1"
    for _ in range(2):  # the second renews
        assert await daemon.lease.acquire(600, 0)
    assert blocking.eval(RENEW, 1, keys.leader(RUN), daemon.lease.value, 600_000)
    assert await link.has_leader()
    assert (await daemon.spec(), await daemon.record()) == (SPEC, None)
    await daemon.nodes(SPEC)
    batch, events, _ = await daemon.events(store.CoordinatorState(), 1)
    assert (len(batch.entries), len(events)) == (1, 1)
    assert await daemon.newest_event_id()
    await daemon.save(store.CoordinatorState(run=RUN), [store.Incident(id="a"), store.Incident(id="b")])
    await daemon.save(store.CoordinatorState(run=RUN), [], ["a"])
    assert await daemon.incidents() is not None
    await daemon.send(NODE, store.NodeCommand())
    assert await received.get()
    await link.withdraw()
    await daemon.retire([NODE])
    await daemon.lease.release()
    assert await daemon.lease.other_holder() == ""
    assert link.failures_total == 0
    for task in (sender, receiver):
        await end(task)


def _observe(client: redis.Redis) -> None:
    """Do what `holdfast observe` over several nodes does."""
    membership = Membership(client, "observed", NODE, KnownKey("observed"))
    spec = store.RunSpec(run="observed", nodes=2, ranks_per_node=1, instance="j")
    assert membership.join(spec, lambda: None).run == "observed"
    assert membership.renew() == [NODE]
    view = StoreView(client, "observed", NODE, seal_of("observed", "j"))
    assert (view.status(), view.incidents(), view.silent_nodes([NODE])) == (None, [], [NODE])
    view.announce_end(5)
    membership.leave()


def test_keys_of_others_and_commands_of_operators_are_refused(
    store_server: StoreServer, limited: tuple[str, Path]
) -> None:
    with contextlib.closing(connect_blocking(*limited)) as client:
        send: Any = client.execute_command
        for command in (
            ("GET", "mine"),
            ("EVAL", "return redis.call('SET', KEYS[1], '')", "1", "mine"),
            ("FLUSHALL",),
            ("FLUSHDB",),
            ("CONFIG", "GET", "*"),
            ("KEYS", "*"),
            ("ACL", "LIST"),
            ("SCRIPT", "FLUSH"),
            ("FUNCTION", "FLUSH"),
            ("SHUTDOWN",),
            ("CLIENT", "LIST"),
            ("PUBLISH", "holdfast", "x"),
            ("SWAPDB", "0", "1"),
        ):
            with pytest.raises(NoPermissionError):
                send(*command)

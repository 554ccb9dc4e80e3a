import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast_agent.reports.leader_watch import LEAST_PATIENCE_S, LeaderWatch
from holdfast_proto import keys
from holdfast_proto.v1 import store_pb2 as store
from tests.agent.reports.test_store_link import RUN, linked
from tests.support.receiver import Answer, Receiver, receiver
from tests.support.run_keys import KnownKey
from tests.support.store_server import StoreServer


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class WatchedNode:
    """As much of a node as the watch reads."""

    def __init__(
        self, url_file: Path, *, first_rank: int = 0, ranks: int = 2, nodes: int = 1, fail_url_file: str = ""
    ) -> None:
        self.spec = store.RunSpec(run=RUN, nodes=nodes)
        heartbeat = store.Heartbeat(url_file=str(url_file), fail_url_file=fail_url_file, every_s=10.0)
        self.spec.notify.heartbeat.CopyFrom(heartbeat)
        self.start = store.StartGeneration(first_rank=first_rank, ranks=ranks)
        self.options = type("Options", (), {"node": "node0"})


@pytest.fixture
def service() -> Iterator[Receiver]:
    with receiver() as it:
        yield it


@pytest.fixture
def url_file(service: Receiver, tmp_path: Path) -> Path:
    file = tmp_path / "url"
    file.write_text(f"{service.url}/ping/x?rid=1\n")
    return file


Watch = Callable[..., contextlib.AbstractAsyncContextManager[LeaderWatch]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watching(store_server: StoreServer, url_file: Path, clock: Clock) -> Watch:
    """A function that makes a watch of a node, by the clock of the test."""

    @contextlib.asynccontextmanager
    async def begin(**fields: Any) -> AsyncIterator[LeaderWatch]:
        async with linked(store_server) as link:
            yield LeaderWatch(cast(Any, WatchedNode(url_file, **fields)), link, clock_s=clock)

    return begin


def set_leader(server: StoreServer, is_led: bool) -> None:
    with server.client() as client:
        if is_led:
            client.set(keys.leader(RUN), KnownKey(RUN).read().seal.sign_text(keys.leader(RUN), "daemon 1"))
        else:
            client.delete(keys.leader(RUN))


async def test_a_run_without_a_daemon_is_reported_once(
    watching: Watch, clock: Clock, service: Receiver, store_server: StoreServer
) -> None:
    async with watching() as watched:
        set_leader(store_server, True)
        await watched.look()
        set_leader(store_server, False)
        await watched.look()
        clock.now_s += LEAST_PATIENCE_S - 1
        await watched.look()
        assert service.received == []
        clock.now_s += 1
        for _ in range(3):
            await watched.look()
            clock.now_s += 1000
        [report] = service.received
        assert report.path == "/ping/x/fail?rid=1"
        assert report.body.decode().startswith("run run: no daemon leads it, as node node0 has seen for 30 s")
        set_leader(store_server, True)
        await watched.look()
        set_leader(store_server, False)
        await watched.look()
        clock.now_s += LEAST_PATIENCE_S
        await watched.look()
        assert len(service.received) == 2


async def test_while_a_daemon_leads_agents_send_nothing(
    watching: Watch, clock: Clock, service: Receiver, store_server: StoreServer
) -> None:
    async with watching() as watched:
        set_leader(store_server, True)
        for _ in range(5):
            await watched.look()
            clock.now_s += 1000
        assert service.received == []


async def test_an_unreachable_redis_is_reported_as_such(watching: Watch, clock: Clock, service: Receiver) -> None:
    async with watching() as watched:
        watched._link._client.connection_pool.connection_kwargs.update(path="/nowhere")
        await watched.look()
        clock.now_s += LEAST_PATIENCE_S
        await watched.look()
        assert b"Redis is unreachable" in service.received[0].body


async def test_a_report_that_fails_is_repeated_with_pauses(watching: Watch, clock: Clock, service: Receiver) -> None:
    service.answers = [Answer(500), Answer(500), Answer()]
    async with watching() as watched:
        await watched.look()
        seen = []
        for _ in range(400):
            clock.now_s += 1
            await watched.look()
            seen.append(len(service.received))
        assert [seen.index(number) + 1 for number in (1, 2, 3)] == [30, 90, 210]
        assert seen[-1] == 3


@pytest.mark.parametrize("place", [(8, 2, 2, 90), (8, 4, 2, 150), (8, 6, 2, None), (8, 0, 0, None), (2, 0, 0, 30)])
async def test_few_nodes_report_and_one_after_the_other(
    watching: Watch, clock: Clock, service: Receiver, place: tuple[int, int, int, int | None]
) -> None:
    nodes, first_rank, ranks, reported_at_s = place
    async with watching(nodes=nodes, first_rank=first_rank, ranks=ranks) as watched:
        await watched.look()
        clock.now_s += (reported_at_s or 10_000) - 1
        await watched.look()
        assert service.received == []
        clock.now_s += 1
        await watched.look()
        assert len(service.received) == (reported_at_s is not None)


async def test_a_failure_can_have_a_url_of_its_own(
    watching: Watch, clock: Clock, service: Receiver, tmp_path: Path
) -> None:
    other = tmp_path / "fail"
    other.write_text(f"{service.url}/other")
    async with watching(fail_url_file=str(other)) as watched:
        await watched.look()
        clock.now_s += LEAST_PATIENCE_S
        await watched.look()
        assert [one.path for one in service.received] == ["/other"]

import logging
from pathlib import Path

import pytest

from holdfast_base.redis_client import QUIET_S, StoreError, StoreOutage, check_url, connect
from tests.support.store_server import StoreServer


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:6379/0",
        "rediss://me@host",
        "unix:///run/store.sock",
        "redis+sentinel://me@a:26379,b,[::1]:3/runs",
        "redis+cluster://a:1,b:2",
    ],
)
def test_urls_of_all_kinds_are_taken_as_they_are(url: str) -> None:
    assert check_url(url) == url


@pytest.mark.parametrize("url", ["redis+sentinel://a:1", "redis+sentinel://a:1,/runs", "redis+sentinel://a:1/runs/0"])
def test_a_url_of_sentinels_needs_their_places_and_the_service(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis\+sentinel://host:port,host:port/SERVICE"):
        check_url(url)


@pytest.mark.parametrize("url", ["redis+cluster://a:1/0", "redis+cluster://", "redis+cluster://a:1?db=3"])
def test_a_url_of_a_cluster_has_places_alone(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis\+cluster://host:port,host:port"):
        check_url(url)


@pytest.mark.parametrize("url", ["redis://host:x", "redis+sentinel://a:1,b:x/runs", "redis+cluster://a:1,b:99999"])
def test_a_port_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="port is not a number"):
        check_url(url)


@pytest.mark.parametrize("url", ["http://host", "host:6379", "/run/store.sock", ""])
def test_a_url_of_another_kind_is_refused_and_the_others_are_named(url: str) -> None:
    with pytest.raises(ValueError, match=r"--redis .*redis://host:port, rediss://host:port or unix:///path"):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host:1/0",
        "rediss://me:hunter2@host",
        "unix:///run/store.sock?password=hunter2",
        "redis+sentinel://me:hunter2@a:1,b:2/runs",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="--redis-password-file") as caught:
        check_url(url)
    assert "hunter2" not in str(caught.value)


async def test_the_password_comes_from_its_file(store_server: StoreServer, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    with store_server.client() as operator:
        operator.config_set("requirepass", "hunter2")
        try:
            stranger, friend = connect(store_server.url), connect(store_server.url, password)
            with pytest.raises(StoreError, match="authenticated"):
                await stranger.get("key")
            assert await friend.get("key") is None
            await stranger.aclose()
            await friend.aclose()
        finally:
            operator.config_set("requirepass", "")


def test_an_unreadable_password_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        connect("redis://host", tmp_path / "missing")


async def test_a_client_outlives_the_server_it_was_made_for(store_server: StoreServer) -> None:
    client = connect(store_server.url)
    await client.set("key", "value")
    store_server.kill()
    with pytest.raises(StoreError):
        await client.get("key")
    store_server.start()
    assert await client.get("key") is None
    await client.aclose()


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> StoreOutage:
    caplog.set_level(logging.INFO)
    return StoreOutage(logging.getLogger("agent"), "redis://head:6379", "the agent tries again", clock)


def test_an_outage_is_one_line_and_its_end_another(
    outage: StoreOutage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage.answered()
    assert caplog.messages == []
    for _ in range(500):
        outage.failed(ConnectionError("Error 111 connecting to head:6379.\nConnection refused."))
        clock.now_s += 0.2
    outage.answered()
    assert len(caplog.messages) == 1
    for _ in range(2):
        clock.now_s += QUIET_S
        outage.answered()
    assert caplog.messages == [
        "Redis at redis://head:6379 cannot be used (Error 111 connecting to head:6379. Connection refused): the agent"
        " tries again",
        "Redis at redis://head:6379 can be used again, after 100.0 s",
    ]


def test_a_store_that_answers_reads_and_refuses_writes_is_one_outage(
    outage: StoreOutage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(500):
        outage.answered()
        outage.failed(OSError("READONLY You can't write against a read only replica."))
        clock.now_s += 0.2
    assert len(caplog.messages) == 1


def test_a_store_that_comes_and_goes_is_reported_every_few_seconds_at_most(
    outage: StoreOutage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        outage.failed(OSError("gone"))
        outage.answered()
        clock.now_s += QUIET_S / 10
    assert len(caplog.messages) == 1
    clock.now_s += QUIET_S
    outage.answered()
    assert len(caplog.messages) == 2
    outage.failed(OSError("gone"))
    assert len(caplog.messages) == 3

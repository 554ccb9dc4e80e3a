"""Live changes: first a frame, then what differs; pages that vanish or do not read harm nobody."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from holdfast_daemon.console.live_feeds import MOST_PAGES
from holdfast_daemon.console.serving import streams
from holdfast_daemon.console.serving.streams import QUEUED, EndedError, Event, Feed
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.console.conftest import advance
from tests.daemon.console.test_browser_json import applied, without_null
from tests.support.console_server import SimulatedConsole
from tests.support.coroutines import wait_until
from tests.support.event_stream import EventStream

RUN = "/api/runs/llama-7b"


def opened(console: SimulatedConsole, path: str) -> EventStream:
    return EventStream(console.request(path))


def test_the_changes_of_a_run_applied_in_order_give_its_newest_frame(console: SimulatedConsole) -> None:
    with opened(console, f"{RUN}/stream") as stream:
        name, frame = stream.next()
        assert name == "frame"
        frame = without_null(frame)
        for number in range(4):
            if number == 1:
                console.on_loop(lambda: console.run.judge(3))
            elif number == 3:
                console.on_loop(console.run.recover)
            console.on_loop(lambda: console.run.advance(2.0))
            change = stream.until("change")
            frame = applied(frame, change)
            assert frame == without_null(console.get(RUN))
        assert "attention" not in frame
        assert frame["restarts"] == 2


def test_new_steps_come_as_rows(console: SimulatedConsole) -> None:
    with opened(console, f"{RUN}/stream") as stream:
        stream.until("frame")
        console.on_loop(lambda: console.run.advance(1.0))
        steps = stream.until("steps")
        (row,) = steps["rows"]
        assert (row[0], row[5], steps["undone_after"]) == (11, pytest.approx(0.5, rel=0.1), None)


def test_the_ranks_of_a_run_are_said_to_be_old_while_the_store_is_unreachable(console: SimulatedConsole) -> None:
    with opened(console, f"{RUN}/ranks/stream") as stream:
        assert stream.until("frame")["stale"] == ""
        console.on_loop(lambda: setattr(console.run, "store_up", False))
        line = console.get(RUN)["state_text"]
        assert stream.until("change") == {"stale": line}
        with opened(console, f"{RUN}/ranks/stream") as further:
            assert further.until("frame")["stale"] == line
        console.on_loop(lambda: setattr(console.run, "store_up", True))
        assert stream.until("change")["stale"] == ""


def test_a_stream_ends_when_the_run_is_forgotten(console: SimulatedConsole) -> None:
    with opened(console, f"{RUN}/stream") as stream, opened(console, f"{RUN}/ranks/stream") as ranks:
        stream.until("frame")
        ranks.until("frame")
        console.runs.clear()
        assert stream.until("gone") == {"run": "llama-7b"}
        assert ranks.until("gone") == {"run": "llama-7b"}
        for ended in (stream, ranks):
            with pytest.raises(EOFError):
                ended.next()


@pytest.mark.parametrize("path", [f"{RUN}/stream", f"{RUN}/ranks/stream", "/api/stream"])
def test_every_stream_ends_with_how_the_runs_were(console: SimulatedConsole, path: str) -> None:
    with opened(console, path) as stream:
        stream.next()
        console.on_loop(lambda: console.run.end("failed: too many restarts", store.RUN_PHASE_FAILED))
        console.server.close()
        row = {"run": "llama-7b", "state": "failed", "state_text": "failed: too many restarts"}
        assert stream.until("farewell") == {"runs": [row]}
        with pytest.raises(EOFError):
            stream.next()


def test_the_list_of_runs_follows(console: SimulatedConsole) -> None:
    with opened(console, "/api/stream") as stream:
        assert stream.until("runs")["runs"][0]["step"] == 9
        console.on_loop(lambda: console.run.advance(1.0))
        assert stream.until("runs")["runs"][0]["step"] == 11


def test_the_ranks_follow_with_differences_alone(console: SimulatedConsole) -> None:
    with opened(console, f"{RUN}/ranks/stream?colour=health") as one:
        name, frame = one.next()
        assert (name, set(frame["values"])) == ("frame", {0})
        advance(console, 5.0, console.run.hang, 3)
        change = one.until("change")
        words = frame["legend"]["words"]
        shown = {at: words[to] for at, to in zip(change["values"]["at"], change["values"]["to"], strict=True)}
        assert shown == {rank: "stalled" if rank == 3 else "waiting" for rank in range(8)}
        assert change["odd"][0] == 3
        assert "legend" not in change
        with opened(console, f"{RUN}/ranks/stream?colour=health") as other:
            assert other.next()[1]["values"] == [3 if rank == 3 else 2 for rank in range(8)]
            advance(console, 1.0, console.run.revive)
            for stream in (one, other):
                change = stream.until("change")
                assert (change["values"]["at"], set(change["values"]["to"])) == (list(range(8)), {0})


def test_pages_that_vanish_leave_nothing(console: SimulatedConsole) -> None:
    streams = [opened(console, f"{RUN}/stream") for _ in range(5)]
    assert console.get("/api/holdfast")["pages_open"] == 5
    for stream in streams:
        stream.next()
        stream.__exit__()
    wait_until(lambda: console.get("/api/holdfast")["pages_open"] == 0, "all pages are closed")


def test_too_many_pages_are_refused_and_the_others_live(console: SimulatedConsole) -> None:
    streams = [opened(console, f"{RUN}/stream") for _ in range(MOST_PAGES)]
    with pytest.raises(OSError, match="503"):
        opened(console, f"{RUN}/stream")
    console.on_loop(lambda: console.run.advance(1.0))
    streams[0].until("change")
    for stream in streams:
        stream.__exit__()


def test_clients_that_say_nothing_make_room_for_those_that_ask(console: SimulatedConsole) -> None:
    silent = []
    for _ in range(100):
        client = socket.socket()
        client.connect(("127.0.0.1", console.port))
        silent.append(client)
    assert console.get("/api/session")["role"] == "operator"
    for client in silent:
        client.close()


def test_the_end_of_the_console_ends_streams_threads_and_port(console: SimulatedConsole) -> None:
    with opened(console, f"{RUN}/stream") as stream:
        stream.until("frame")
        console.server.close()
        with pytest.raises(EOFError):
            while True:
                stream.next()
    assert "console" not in {thread.name for thread in threading.enumerate()}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", console.port)) != 0


class Counting:
    """A feed that counts up, and ends after ``last``."""

    def __init__(self, last: int = 10**9) -> None:
        self.number = 0
        self.last = last
        self.looks = 0
        self.feed = Feed(self.first, self.changes, least_pause_s=0.001)

    def first(self, alone: bool) -> list[Event]:
        return [("frame", {"number": self.number, "alone": alone})]

    def changes(self) -> Any:
        self.looks += 1
        self.number += 1
        if self.number > self.last:
            raise EndedError(("gone", {}))
        return [("change", {"number": self.number})]


async def test_a_page_that_does_not_read_is_dropped_and_others_miss_nothing() -> None:
    it = Counting(last=3 * QUEUED)
    slow, quick = it.feed.stream(), it.feed.stream()
    await anext(slow)
    seen = [part async for part in quick]
    assert b'"alone":false' in seen[0]
    assert len(seen) == 1 + it.last + 1
    assert seen[-1].startswith(b"event: gone")
    rest = [part async for part in slow]
    assert len(rest) == QUEUED  # what was queued until it was dropped
    assert it.feed.pages == 0


async def test_nobody_looks_while_no_page_is_open() -> None:
    it = Counting()
    stream = it.feed.stream()
    await anext(stream)
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    looks = it.looks
    await asyncio.sleep(0.05)
    assert it.looks <= looks + 1


async def test_a_feed_that_fails_ends_its_pages_and_serves_the_next() -> None:
    it = Counting()
    stream = it.feed.stream()
    await anext(stream)
    it.number = "no number"  # type: ignore[assignment]
    assert [part async for part in stream if b"change" in part] == []
    it.number = 5
    assert b'"number":5,"alone":true' in await anext(it.feed.stream())
    it.feed.end()


async def test_something_urgent_ends_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "COST_RATIO", 1e12)
    seen, incidents = 0, 0

    def changes() -> list[Event]:
        nonlocal seen
        seen += 1
        return [("change", {"number": seen})]

    feed = Feed(lambda _alone: [("frame", {})], changes, 0.01, lambda: incidents)
    stream = feed.stream()
    assert b"frame" in await anext(stream)
    assert b'"number":1' in await anext(stream)
    for number in (2, 3):
        assert seen == number - 1, "the pause after a costly round is long"
        incidents += 1
        assert b'"number":%d' % number in await asyncio.wait_for(anext(stream), 30.0)
    feed.end()

import threading
from pathlib import Path

import pytest

from holdfast_checkpoint.checkpoint_errors import CheckpointError
from holdfast_checkpoint.store.locations import PRIMARY, SECONDARY, open_objects
from holdfast_checkpoint.store.object_store import Bandwidth, ObjectStore
from holdfast_checkpoint.store.retries import Retries
from tests.support.object_places import Place


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Waits(threading.Event):
    """An event that records the waits of uploads and ends each immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        return self.is_set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of 1,000 bytes."""
    path = tmp_path / "shard"
    path.write_bytes(bytes(1000))
    return path


def test_every_piece_waits_until_those_before_are_paid_for(clock: Clock) -> None:
    bandwidth = Bandwidth(1000.0, clock_s=clock)
    assert [bandwidth.take_s(nbytes) for nbytes in (500, 2000, 1)] == [0.0, 0.5, 2.5]
    clock.now_s += 2.0
    assert bandwidth.take_s(1) == pytest.approx(0.501)


def test_what_was_not_used_is_not_saved_up(clock: Clock) -> None:
    bandwidth = Bandwidth(1000.0, clock_s=clock)
    clock.now_s += 3600.0
    assert [bandwidth.take_s(1000) for _ in range(3)] == [0.0, 1.0, 2.0]


def test_without_a_limit_nothing_waits(clock: Clock) -> None:
    bandwidth = Bandwidth(clock_s=clock)
    assert [bandwidth.take_s(1 << 40) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_both_places_of_a_node_share_the_bandwidth(clock: Clock, waits: Waits, source: Path) -> None:
    bandwidth = Bandwidth(1000.0, clock_s=clock)
    for setting in (PRIMARY, SECONDARY):
        store = open_objects(setting, "memory://shared", Retries(closing=waits), bandwidth).store
        store.upload(source, setting)
        store.upload(source, f"{setting} again")
    assert waits.waits_s == [0.0, 1.0, 2.0, 3.0]


def test_what_is_tried_again_is_paid_for_again(clock: Clock, waits: Waits, source: Path) -> None:
    place = Place()
    place.files.fails = lambda number, _method: OSError("reset by peer") if number == 1 else None
    bandwidth = Bandwidth(1000.0, clock_s=clock)
    store = ObjectStore(place.files, place.url, setting=PRIMARY, retries=Retries(closing=waits), bandwidth=bandwidth)
    store.upload(source, "shard")
    assert waits.waits_s[0::2] == [0.0, 1.0]  # the wait before the second try is between them


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_large_file_is_sent_piece_by_piece(
    kind: str, waits: Waits, source: Path, small_parts: int, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("url") if kind == "s3" else "memory://large"
    source.write_bytes(bytes(2 * small_parts + 1))
    bandwidth = Bandwidth(small_parts, clock_s=Clock())
    store = open_objects(PRIMARY, url, Retries(closing=waits), bandwidth).store
    store.upload(source, "shard")
    assert sorted(waits.waits_s)[:2] == [0.0, 1.0]
    assert len(waits.waits_s) == 3
    assert store.listing()["shard"].nbytes == 2 * small_parts + 1


def test_upload_that_waits_is_cut_off_when_the_agent_ends(source: Path) -> None:
    retries = Retries()
    store = open_objects(PRIMARY, "memory://ends", retries, Bandwidth(1e-9)).store
    store.upload(source, "first")
    retries.closing.set()
    message = "--checkpoints memory://ends: the upload is cut off, because the agent ends"
    with pytest.raises(CheckpointError, match=message):
        store.upload(source, "second")
    assert list(store.listing()) == ["first"]

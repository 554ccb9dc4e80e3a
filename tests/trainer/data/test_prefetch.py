import threading

import pytest

from holdfast_trainer.data.prefetch import Prefetch

ENOUGH_S = 10.0


class Source:
    """A source that notes its items, and fails at the item 3."""

    def __init__(self) -> None:
        self.prepared: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.enough = threading.Semaphore(0)

    def prepare(self, index: int) -> str:
        self.prepared.append(index)
        self.threads.add(threading.current_thread())
        self.enough.release()
        if index == 3:
            raise ValueError("item 3 is damaged")
        return f"item {index}"

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.enough.acquire(timeout=ENOUGH_S)


@pytest.fixture
def source() -> Source:
    return Source()


def test_items_are_prepared_ahead_in_order_and_no_further(source: Source) -> None:
    prefetch = Prefetch(source.prepare, ahead=2)
    assert prefetch.get(0) == "item 0"
    source.wait_for(3)
    assert source.prepared == [0, 1, 2]
    assert prefetch.get(1) == "item 1"
    source.wait_for(1)
    assert source.prepared == [0, 1, 2, 3]
    assert threading.current_thread() not in source.threads
    prefetch.close()


def test_without_items_ahead_there_is_no_thread(source: Source) -> None:
    prefetch = Prefetch(source.prepare, ahead=0)
    assert [prefetch.get(0), prefetch.get(1)] == ["item 0", "item 1"]
    assert source.threads == {threading.current_thread()}
    prefetch.close()


def test_any_item_can_be_asked_for(source: Source) -> None:
    prefetch = Prefetch(source.prepare, ahead=2)
    assert [prefetch.get(index) for index in (7, 8, 20, 21, 0, 0)] == [f"item {i}" for i in (7, 8, 20, 21, 0, 0)]
    prefetch.close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_error_is_raised_where_the_item_is_asked_for_and_not_before(source: Source, ahead: int) -> None:
    prefetch = Prefetch(source.prepare, ahead=ahead)
    assert [prefetch.get(index) for index in range(3)] == ["item 0", "item 1", "item 2"]
    with pytest.raises(ValueError, match="item 3 is damaged"):
        prefetch.get(3)
    assert prefetch.get(4) == "item 4"
    prefetch.close()


@pytest.mark.parametrize("ahead", [0, 1])
def test_wait_is_that_of_the_last_get(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    now_s = 100.0

    def prepare(index: int) -> None:
        nonlocal now_s
        if index == 0:
            now_s += 5.0

    monkeypatch.setattr("holdfast_trainer.data.prefetch.time.monotonic", lambda: now_s)
    prefetch = Prefetch(prepare, ahead=ahead)
    prefetch.get(0)
    assert prefetch.wait_s == 5.0
    prefetch.get(1)
    assert prefetch.wait_s == 0.0
    prefetch.close()


def test_closing_ends_the_thread_and_drops_what_was_not_begun(source: Source) -> None:
    prefetch = Prefetch(source.prepare, ahead=2)
    prefetch.get(0)
    source.wait_for(3)
    prefetch.close()
    assert [thread for thread in source.threads if thread.is_alive()] == []
    assert source.prepared == [0, 1, 2]

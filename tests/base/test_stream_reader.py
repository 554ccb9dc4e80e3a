from typing import Any

import pytest

from holdfast_base.redis_client import StoreError
from holdfast_base.stream_reader import StreamBatch, StreamReader
from tests.support.store_server import StoreServer

KEY = "stream"


class StreamReading:
    """A reader that confirms what it reads, and the texts that it has read."""

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self.reader = StreamReader(server.connect(), KEY)
        self.last_id = "0"
        self.texts: list[str] = []
        self.missed: list[int] = []
        self.losses = 0

    def add(self, *texts: str, at: str = "*", most: int | None = None) -> None:
        """Add entries. ``at``: an id, or the time of one."""
        with self._server.client() as client:
            for number, text in enumerate(texts):
                entry_id = f"{at}-{number}" if at.isdecimal() else at
                client.xadd(KEY, {"text": text}, id=entry_id, maxlen=most, approximate=False)

    def lose(self, *, after: str = "") -> None:
        """Lose the stream, or its newest entries, as a replica that lags does: their ids may be given again."""
        with self._server.client() as client:
            kept: Any = client.xrange(KEY, max=after) if after else []
            client.delete(KEY)
            for entry_id, fields in kept:
                client.xadd(KEY, fields, id=entry_id)

    async def read(self, most: int = 100) -> StreamBatch:
        """Read once."""
        batch = await self.reader.read(self.last_id, most=most, block_ms=1)
        self.last_id = batch.last_id
        self.texts += [fields[b"text"].decode() for _, fields in batch.entries]
        self.missed += [batch.missed] if batch.missed else []
        self.losses += batch.has_lost
        return batch


@pytest.fixture
def reading(store_server: StoreServer) -> StreamReading:
    return StreamReading(store_server)


async def test_entries_come_in_order_and_once(reading: StreamReading) -> None:
    reading.add("a", "b", "c")
    await reading.read(most=2)
    await reading.read(most=2)
    await reading.read()
    reading.add("d")
    await reading.read()
    assert (reading.texts, reading.missed, reading.losses) == (["a", "b", "c", "d"], [], 0)


async def test_a_batch_that_is_not_confirmed_comes_again(reading: StreamReading) -> None:
    reading.add("a", "b")
    for _ in range(2):
        batch = await reading.reader.read("0", most=100, block_ms=1)
        assert len(batch.entries) == 2


async def test_a_stream_that_comes_back_empty_with_its_clock_behind_is_read_on(reading: StreamReading) -> None:
    reading.add("a", at="9000000000000")
    await reading.read()
    reading.lose()
    reading.add("b")
    await reading.read()
    reading.add("c")
    await reading.read()
    assert (reading.texts, reading.missed, reading.losses) == (["a", "b", "c"], [], 1)


async def test_data_that_comes_back_after_it_was_lost_is_not_read_twice(reading: StreamReading) -> None:
    reading.add("a", "b", at="10")
    await reading.read()
    reading.lose()
    await reading.read()
    reading.add("a", "b", at="10")
    reading.add("c", at="20")
    await reading.read()
    assert (reading.texts, reading.losses) == (["a", "b", "c"], 1)


async def test_an_id_that_is_given_again_is_of_a_new_entry(reading: StreamReading) -> None:
    reading.add("a", at="10")
    reading.add("b", at="20")
    await reading.read()
    reading.lose()
    reading.add("c", at="10")
    await reading.read()
    assert (reading.texts, reading.losses) == (["a", "b", "c"], 1)


async def test_an_empty_stream_is_a_loss_once(reading: StreamReading) -> None:
    reading.add("a")
    await reading.read()
    reading.lose()
    for _ in range(3):
        await reading.read()
    assert (reading.last_id, reading.losses) == ("0-0", 1)


async def test_a_replica_that_lacks_the_newest_entries_brings_none_twice(reading: StreamReading) -> None:
    for number, text in enumerate("abcd", start=1):
        reading.add(text, at=str(10 * number))
    await reading.read()
    reading.lose(after="20-0")
    reading.add("e", at="25")
    await reading.read()
    reading.add("f", at="35")
    await reading.read()
    assert (reading.texts, reading.missed, reading.losses) == (list("abcdef"), [], 1)


async def test_after_a_failure_entries_with_smaller_ids_are_found(
    reading: StreamReading, store_server: StoreServer
) -> None:
    reading.add("a", at="10")
    reading.add("b", at="20")
    await reading.read()
    store_server.kill()
    with pytest.raises(StoreError):
        await reading.read()
    store_server.start()
    reading.add("a", at="10")  # what a replica has, which becomes the master
    reading.add("c", at="15")
    reading.add("d", at="25")
    await reading.read()
    await reading.read()
    assert (reading.texts, reading.losses) == (["a", "b", "c", "d"], 0)


async def test_entries_that_were_removed_unread_are_counted(reading: StreamReading) -> None:
    reading.add("a", "b", "c", most=3)
    await reading.read()
    reading.add("d", "e", "f", "g", "h", most=3)
    await reading.read()
    reading.add("i", most=3)
    await reading.read()
    assert (reading.texts, reading.missed) == (["a", "b", "c", "f", "g", "h", "i"], [2])


async def test_entries_that_were_read_and_removed_are_not_missed(reading: StreamReading) -> None:
    reading.add("a", "b", most=2)
    await reading.read()
    reading.add("c", "d", most=2)
    await reading.read()
    assert (reading.texts, reading.missed) == (["a", "b", "c", "d"], [])


async def test_a_new_reader_finds_that_some_were_removed_and_not_how_many(reading: StreamReading) -> None:
    reading.add("a", at="10")
    reading.add("b", "c", "d", at="20", most=2)
    reading.last_id = "10-0"
    await reading.read()
    assert (reading.texts, reading.missed) == (["c", "d"], [-1])


async def test_an_entry_with_the_largest_id_of_all_blinds_no_reader_once_it_is_gone(reading: StreamReading) -> None:
    reading.add("a")
    await reading.read()
    reading.add("forged", at=f"{2**64 - 1}-{2**64 - 1}")
    for _ in range(3):
        await reading.read()
    reading.lose()
    reading.add("b", "c")
    for _ in range(2):
        await reading.read()
    assert reading.texts == ["a", "forged", "b", "c"]
    assert reading.losses == 1

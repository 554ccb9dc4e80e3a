"""Pickles of plain data are read. Anything that could run code is refused, and does not run."""

import os
import pickle
import tracemalloc
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.evidence.plain_pickle import NotPlainError, load_plain

PLAIN = {
    "version": "2.10",
    "pg_status": {0: {"last_enqueued_collective": -1}},
    "entries": [
        {"process_group": ("0", "default_pg"), "duration_ms": 1.5, "time": 1 << 62, "started": None, "retired": True}
    ],
}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_of_each_protocol_are_read(protocol: int) -> None:
    assert load_plain(pickle.dumps(PLAIN, protocol=protocol)) == PLAIN


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_a_pickle_with_code_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    data = pickle.dumps({"version": "2.10", "entries": [Runs(mark)]}, protocol=2)
    with pytest.raises(NotPlainError, match=r"refers to (posix|os)\.system, and a recorder's dump holds plain data"):
        load_plain(data)
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists()  # so the pickle does run where it is not refused


@pytest.mark.parametrize(
    "harmful",
    [
        b"cposix\nsystem\n(S'true'\ntR.",  # protocol 0: GLOBAL and REDUCE
        b"(S'true'\niposix\nsystem\n.",  # INST
        b"\x80\x02(cposix\nsystem\nX\x04\x00\x00\x00trueo.",  # OBJ
        b"\x80\x02\x82\x01.",  # EXT1: a name out of a registry
        pickle.dumps(OrderedDict(a=1), protocol=2),
        pickle.dumps({1, 2}, protocol=2),
    ],
)
def test_every_way_to_name_an_object_is_refused(harmful: bytes) -> None:
    with pytest.raises(NotPlainError):
        load_plain(harmful)


def test_an_object_outside_of_the_pickle_is_refused() -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object, /) -> str | None:
            return "tensor" if value == 7 else None

    target = BytesIO()
    Pickler(target, protocol=2).dump({"entries": [7]})
    with pytest.raises(NotPlainError, match="an object outside of it"):
        load_plain(target.getvalue())


@pytest.mark.parametrize("kept", [0, 1, 5, 40, -1])
def test_a_pickle_that_was_cut_off_is_refused(kept: int) -> None:
    with pytest.raises(NotPlainError, match="no complete pickle"):
        load_plain(pickle.dumps(PLAIN, protocol=2)[:kept])


@pytest.mark.parametrize("data", [b"\x80\x63.", b"\x80\x02R.", b"\x80\x02h\x07.", b"\x80\x02]]s.", b"\x80\x02\xff"])
def test_damaged_opcodes_are_refused(data: bytes) -> None:
    with pytest.raises(NotPlainError):
        load_plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\x0f.",  # LONG_BINPUT: 4 GiB for the table of known objects
        b"\x80\x02T\xff\xff\xff\x7fx.",  # BINSTRING
        b"\x80\x02X\xff\xff\xff\xffx.",  # BINUNICODE
        b"\x80\x02\x8b\xff\xff\xff\x7fx.",  # LONG4
        b"\x80\x04\x8d" + (1 << 33).to_bytes(8, "little") + b"x.",  # BINUNICODE8
        b"\x80\x05\x96" + (1 << 32).to_bytes(8, "little") + b"x.",  # BYTEARRAY8
        b"\x80\x02p268435455\n.",  # PUT
    ],
)
def test_no_length_that_a_pickle_announces_takes_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(NotPlainError, match="cut off or damaged"):
            load_plain(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("piece", "built_bytes"),
    [(b"}", 64), (b"]", 56), (b"N\x85", 56), (b"]2", 64), (b"}NNs", 232), (b"\x8c\x02ab", 51), (b"(l", 56)],
    ids=["dicts", "lists", "tuples", "duplicates", "filled dicts", "texts", "marks"],
)
def test_objects_are_counted_before_they_are_built(
    piece: bytes, built_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\x80\x02(" + piece * 100_000 + b"l."
    monkeypatch.setattr("holdfast_agent.evidence.plain_pickle.MOST_MEMORY_BYTES", built_bytes * 100_000)
    tracemalloc.start()
    try:
        with pytest.raises(NotPlainError, match="describes objects of more than"):
            load_plain(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xf0\xff\xff\xff.",  # a place that no memory has: an exception without a text
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
        b"\x80\x02(.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_a_damaged_pickle_has_a_reason_in_plain_words(data: bytes) -> None:
    with pytest.raises(NotPlainError, match=r"^it is no complete pickle: it is cut off or damaged$"):
        load_plain(data)


def test_the_name_that_a_pickle_refers_to_is_short_and_cannot_steer_a_terminal() -> None:
    data = b"\x80\x02cos\x1b[31m\n" + b"x" * 5000 + b"\n."
    with pytest.raises(
        NotPlainError, match=r"^it refers to os\?\[31m\.x+, and a recorder's dump holds plain"
    ) as raised:
        load_plain(data)
    assert len(str(raised.value)) < 200

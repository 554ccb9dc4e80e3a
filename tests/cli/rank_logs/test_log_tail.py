import tracemalloc
from pathlib import Path

import pytest

from holdfast_cli.rank_logs import log_tail
from holdfast_cli.rank_logs.log_tail import LINE_CUT, LogTail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank.log"


def test_a_line_is_read_once_it_is_complete(log: Path) -> None:
    tail = LogTail(log)
    assert tail.lines() == []
    log.write_text("one\ntw")
    assert tail.lines() == ["one"]
    log.write_text("one\ntwo\nthr")
    assert tail.lines() == ["two"]
    assert list(tail.rest()) == ["thr"]
    assert list(tail.rest()) == []


def test_a_log_that_was_emptied_is_read_from_its_new_beginning(log: Path) -> None:
    tail = LogTail(log)
    log.write_text("one\ntwo\nthr")
    assert tail.lines() == ["one", "two"]
    log.write_text("new\n")
    assert tail.lines() == ["new"]


def test_the_newest_lines_are_read_from_the_end(log: Path) -> None:
    log.write_text("".join(f"line {number}\n" for number in range(100_000)) + "begun")
    tail = LogTail(log)
    assert tail.newest(2) == ["line 99998", "line 99999"]
    assert tail.lines() == []
    assert list(tail.rest()) == ["begun"]
    assert len(LogTail(log).newest(200_000)) == 100_000
    assert LogTail(log.with_name("none.log")).newest(3) == []


def test_a_progress_bar_is_shown_as_it_was_last_drawn(log: Path) -> None:
    log.write_bytes(b"  1%|\r 50%|\r100%|\nwindows\r\n\xff\n")
    assert LogTail(log).lines() == ["100%|", "windows", "\N{REPLACEMENT CHARACTER}"]


def test_a_line_without_an_end_is_shown_in_pieces(log: Path) -> None:
    log.write_bytes(b"x" * (2 * log_tail.READ_BYTES + 5) + b"\nnext\n")
    *pieces, end, after = LogTail(log).rest()
    assert [piece.endswith(f"x {LINE_CUT}") for piece in pieces] == [True, True]
    assert sum(piece.count("x") for piece in [*pieces, end]) == 2 * log_tail.READ_BYTES + 5
    assert (end, after) == ("xxxxx", "next")


def test_a_huge_line_needs_little_memory(log: Path) -> None:
    size = 50_000_000
    log.write_bytes(b"x" * size)
    ended = log.with_name("ended.log")
    ended.write_bytes(b"x" * size + b"\nlast\n")
    tracemalloc.start()
    assert sum(piece.count("x") for piece in LogTail(log).rest()) == size
    tail = LogTail(log)
    assert tail.newest(3) == []
    assert list(tail.rest()) == [f"{LINE_CUT} {'x' * log_tail.LONGEST_LINE_BYTES}"]
    first, last = LogTail(ended).newest(2)
    assert (first[:24], len(first), last) == (f"{LINE_CUT} x", log_tail.LONGEST_LINE_BYTES + 23, "last")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_a_progress_bar_without_a_line_end_has_no_mark(log: Path) -> None:
    log.write_bytes(b"".join(b"\r%9d%%" % done for done in range(20_000)))
    assert all(len(line) <= 10 for line in LogTail(log).rest())
    tail = LogTail(log)
    tail.newest(1)
    assert list(tail.rest()) == ["    19999%"]


def test_of_a_log_with_few_line_ends_only_the_end_is_read(log: Path) -> None:
    log.write_bytes(b"begun\n" + b"".join(b"\r%9d%%" % done for done in range(1_000_000)) + b"\nlast\n\r1%\r2%")
    tail = LogTail(log)
    tracemalloc.start()
    assert tail.newest(2) == ["   999999%", "last"]
    assert LogTail(log).newest(10)[-2:] == ["   999999%", "last"]
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert list(tail.rest()) == ["2%"]

import tracemalloc
from pathlib import Path

from holdfast_cli.rank_logs import log_tail
from holdfast_cli.rank_logs.log_tail import LogTail


def test_a_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    tail = LogTail(log)
    assert tail.lines() == []
    log.write_text("one\ntw")
    assert tail.lines() == ["one"]
    log.write_text("one\ntwo\nthr")
    assert tail.lines() == ["two"]
    assert tail.rest() == ["thr"]
    assert tail.rest() == []


def test_the_newest_lines_are_read_from_the_end(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)) + "begun")
    tail = LogTail(log)
    assert tail.newest(2) == ["line 99998", "line 99999"]
    assert tail.lines() == []
    assert tail.rest() == ["begun"]
    assert len(LogTail(log).newest(200_000)) == 100_000
    assert LogTail(tmp_path / "none.log").newest(3) == []


def test_a_progress_bar_is_shown_as_it_was_last_drawn(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"  1%|\r 50%|\r100%|\nwindows\r\n\xff\n")
    assert LogTail(log).lines() == ["100%|", "windows", "\N{REPLACEMENT CHARACTER}"]


def test_a_line_without_an_end_is_shown_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"x" * (2 * log_tail.READ_BYTES + 5))
    assert sum(map(len, LogTail(log).rest())) == 2 * log_tail.READ_BYTES + 5


def test_of_a_log_with_few_line_ends_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"begun\n" + b"".join(b"\r%9d%%" % done for done in range(1_000_000)) + b"\nlast\n\r1%\r2%")
    tail = LogTail(log)
    tracemalloc.start()
    assert tail.newest(2) == ["   999999%", "last"]
    assert LogTail(log).newest(10)[-2:] == ["   999999%", "last"]
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()
    assert tail.rest() == ["2%"]


def test_a_line_without_an_end_is_not_kept_as_a_whole(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"x" * (2 * log_tail.READ_BYTES))
    tail = LogTail(log)
    assert tail.newest(3) == []
    assert sum(map(len, tail.rest())) == log_tail.LONGEST_LINE_BYTES

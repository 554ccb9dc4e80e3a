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

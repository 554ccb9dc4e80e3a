"""The limit on what a guard reads, by a clock that only sleeping moves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_checkpoint.guard import paced_reading
from holdfast_checkpoint.guard.paced_reading import PIECE_BYTES, FileReader, Pace
from tests.support.foreign_checkpoints import TinyTraining, save_huggingface
from tests.support.guard_command import invoke_guard

FILE_BYTES = 5 * PIECE_BYTES + 7
BEGUN_S = 100.0
AHEAD_S = 0.02
"""Time by which small reads may run ahead: a sleep for each of them would take longer than the read."""


class SleepingClock:
    """Stands in for the module ``time`` where files are read."""

    def __init__(self) -> None:
        self.now_s = BEGUN_S
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.on_sleep()
        self.now_s += seconds

    @property
    def slept_s(self) -> float:
        return self.now_s - BEGUN_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepingClock:
    clock = SleepingClock()
    monkeypatch.setattr(paced_reading, "time", clock)
    return clock


def read(path: Path, pace: Pace) -> int:
    with FileReader(pace).open(path) as file:
        return sum(map(len, file.pieces(0, file.size)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(bytes(FILE_BYTES))
    return path


def test_at_no_time_more_than_the_limit_and_one_piece_was_read(file: Path, clock: SleepingClock) -> None:
    limit = 200_000.0
    pace = Pace(limit)
    seen = []

    def note() -> None:
        seen.append((clock.slept_s, pace.bytes_total))

    clock.on_sleep = note
    assert read(file, pace) == FILE_BYTES
    assert seen
    assert all(total <= limit * (passed_s + AHEAD_S) + PIECE_BYTES for passed_s, total in seen)
    assert limit * clock.slept_s == pytest.approx(FILE_BYTES, abs=AHEAD_S * limit)


def test_small_reads_are_counted_too(file: Path, clock: SleepingClock) -> None:
    limit = 1000.0
    pace = Pace(limit)
    with FileReader(pace).open(file) as opened:
        for offset in range(0, 5000, 10):
            opened.read(offset, 10)
    assert limit * clock.slept_s == pytest.approx(5000, abs=AHEAD_S * limit)


def test_without_a_limit_nothing_sleeps_and_with_twice_the_limit_it_takes_half(
    file: Path, clock: SleepingClock
) -> None:
    spent_s = []
    for limit in (0.0, 1e6, 2e6):
        begun_s = clock.now_s
        read(file, Pace(limit))
        spent_s.append(clock.now_s - begun_s)
    assert spent_s[0] == 0.0
    assert spent_s[1] == pytest.approx(2 * spent_s[2], abs=0.05)


def test_a_signal_ends_a_long_sleep(file: Path, clock: SleepingClock) -> None:
    def interrupt() -> None:
        if clock.now_s > 101.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(file, Pace(1.0, interrupt))  # a piece would take 12 days
    assert clock.now_s < 102.0


def test_the_flag_limits_all_that_the_command_reads(tmp_path: Path, clock: SleepingClock) -> None:
    save_huggingface(tmp_path, 10, TinyTraining())
    limit = 1000.0
    options = ("--once", "--quiet-s", "0", "--json", "--full", "--bytes-per-s", str(limit))
    result = invoke_guard(tmp_path, *options)
    assert result.exit_code == 0
    read_bytes = json.loads(result.stdout)["read_bytes"]
    assert read_bytes > sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    assert limit * clock.slept_s == pytest.approx(read_bytes, abs=AHEAD_S * limit)

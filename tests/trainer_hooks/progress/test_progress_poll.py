import json
import subprocess
import sys
from typing import Any

import pytest

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.progress import progress_poll as progress
from holdfast_hooks.progress.point_to_point import PointToPointRecord, SeqShift
from holdfast_hooks.progress.progress_poll import Group, ProgressPoll, Settling
from holdfast_hooks.progress.recorders.recorder import RecorderUnavailableError


def numbers(enqueued: int, completed: int) -> dict[str, str]:
    return {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}


class Recorder:
    """A Flight Recorder with one group. It counts the requests for full dumps."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries = entries
        self.full_dumps = 0
        self.dumps_within_a_call = 0
        """How many of the next full dumps find a call that is counted and not recorded yet."""
        self.status = {"0": numbers(5, 4)}

    def dump(self, collectives: bool, only_active: bool) -> bytes:
        self.full_dumps += collectives
        if collectives and self.dumps_within_a_call:
            return self._dump_within_a_call()
        return json.dumps({"pg_status": self.status, "entries": self.entries if collectives else []}).encode()

    def _dump_within_a_call(self) -> bytes:
        self.dumps_within_a_call -= 1
        seq = self.entries[-1]["collective_seq_id"] + 1
        self.status["0"] = numbers(seq, seq)
        dump = json.dumps({"pg_status": self.status, "entries": self.entries}).encode()
        self.entries.append(entry(seq, retired=True))
        return dump


def poll_of(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> ProgressPoll:
    def describe(self: ProgressPoll, newest: dict[str, Any], group: Any, unseen: int) -> Group:
        return Group(newest["process_group"][0], (0, 1, 2), "", None, unseen, Settling())

    monkeypatch.setattr(progress, "find_dump", lambda: recorder.dump)
    monkeypatch.setattr(progress, "_groups_by_name", lambda: {"tp": object()})
    monkeypatch.setattr(ProgressPoll, "_describe", describe)
    return ProgressPoll(None, PointToPointRecord(None, OnceLog()), OnceLog())


ENTRY = {"pg_id": 0, "process_group": ["tp", ""], "collective_seq_id": 5, "is_p2p": False, "retired": False}


def test_group_is_looked_up_once_and_only_its_status_read_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([ENTRY])
    poll = poll_of(recorder, monkeypatch)
    recorder.status["0"]["last_completed_collective"] = "5"
    for _ in range(20):
        (group,) = poll.poll()
    assert (group.group, list(group.member_runs), group.enqueued, group.completed) == ("tp", [0, 1, 2], 5, 5)
    assert recorder.full_dumps == 1


def entry(seq: int, *, retired: bool) -> dict[str, Any]:
    return ENTRY | {"collective_seq_id": seq, "retired": retired}


def test_completion_that_the_status_missed_is_found_among_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([entry(seq, retired=True) for seq in range(1, 6)])
    poll = poll_of(recorder, monkeypatch)
    completed = [poll.poll()[0].completed for _ in range(20)]
    assert completed == [4, 4] + [5] * 18
    assert recorder.full_dumps == 2


def test_call_that_hangs_stays_unfinished_and_is_checked_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([entry(seq, retired=seq < 5) for seq in range(1, 6)])
    poll = poll_of(recorder, monkeypatch)
    assert {poll.poll()[0].completed for _ in range(100)} == {4}
    assert recorder.full_dumps == 1 + 6
    recorder.entries = [entry(seq, retired=True) for seq in range(1, 6)]
    recorder.status["0"] = numbers(6, 5)
    assert poll.poll()[0].completed == 5


def test_group_that_has_left_the_ring_is_looked_up_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([])
    poll = poll_of(recorder, monkeypatch)
    for _ in range(100):
        assert poll.poll() == []
    assert (recorder.full_dumps, poll.failures_total) == (7, 0)


@pytest.mark.parametrize("dumps", [1, 2])
def test_a_call_that_is_not_recorded_yet_does_not_count_as_unseen_for_good(
    dumps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder([entry(5, retired=True)])
    recorder.dumps_within_a_call = dumps
    poll = poll_of(recorder, monkeypatch)
    assert poll.poll()[0].enqueued == 4  # one too few, for now
    (group,) = [poll.poll() for _ in range(20)][-1]
    assert group.enqueued == group.completed == 5 + dumps
    assert recorder.full_dumps == dumps + 1


@pytest.mark.system
def test_a_poll_that_first_looks_at_a_rank_within_a_call_counts_its_calls_right() -> None:
    command = [sys.executable, "-m", "tests.trainer_hooks.progress.busy_rank"]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    # The status of the first look has three calls, and the full dump after it makes them seem one fewer.
    assert printed == {"calls": 4, "shown": [[2], [4], [4]]}


def test_calls_from_before_the_record_began_are_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([entry(3, retired=True)])
    recorder.status["0"] = numbers(5, 5)
    poll = poll_of(recorder, monkeypatch)
    assert [poll.poll()[0].enqueued for _ in range(100)] == [3] * 100
    assert recorder.full_dumps == 7  # ever more rarely


def test_doubts_about_one_group_do_not_delay_the_description_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([entry(3, retired=True)])
    recorder.status["0"] = numbers(5, 5)
    poll = poll_of(recorder, monkeypatch)
    for _ in range(40):
        assert len(poll.poll()) == 1
    recorder.entries.append(entry(1, retired=True) | {"pg_id": 1})
    recorder.status["1"] = numbers(1, 1)
    assert len(poll.poll()) == 2


@pytest.mark.parametrize(
    "error", [RecorderUnavailableError("torch 9 has no recorder"), RuntimeError("gone"), KeyError("pg_status")]
)
def test_recorder_that_fails_is_counted_each_time_and_logged_once(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    poll = poll_of(Recorder([]), monkeypatch)
    monkeypatch.setattr(progress, "find_dump", fail)
    assert [poll.poll(), poll.poll(), poll.poll(), poll.failures_total] == [[], [], [], 3]
    assert len(caplog.records) == 1


def test_point_to_point_calls_are_distinguished_from_collectives() -> None:
    shift = SeqShift()
    assert shift.before(9) == 0
    for seq in (2, 3, 7):
        shift.use(seq)
    assert [shift.before(seq) for seq in (1, 2, 3, 4, 7, 8)] == [0, 0, 1, 2, 2, 3]


def test_forgotten_point_to_point_calls_still_count() -> None:
    shift = SeqShift()
    for seq in range(1, 5001):
        shift.use(seq)
    assert shift.before(5001) == 5000
    assert shift.before(4901) == 4900


def test_a_poll_says_for_certain_that_no_call_is_pending_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder([ENTRY])
    poll = poll_of(recorder, monkeypatch)
    poll.poll()
    assert not poll.no_call_pending
    recorder.status["0"]["last_completed_collective"] = "5"
    poll.poll()
    assert poll.no_call_pending
    recorder.status["1"] = numbers(1, 1)  # of no known group
    poll.poll()
    assert not poll.no_call_pending

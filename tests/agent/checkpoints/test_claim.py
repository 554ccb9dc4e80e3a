"""A place of checkpoints belongs to a run. A take-over or a new beginning needs a request."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast_agent.checkpoints.claim import OtherRunError, claim, owners_of
from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_checkpoint.errors import CheckpointUnavailable
from holdfast_checkpoint.format.history import HistoryRecord
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints, open_checkpoints
from holdfast_proto.v1 import store_pb2 as store

if TYPE_CHECKING:
    from tests.support.snapshots import RUN, Snapshots
else:
    from tests.support.snapshots import RUN


def start(
    folder: Path, run: str = RUN, *, instance: str = "i", adopt: bool = False, from_scratch: bool = False
) -> RunCheckpoints:
    """Claim a place as the agents of a run do."""
    checkpoints = open_checkpoints(str(folder / "checkpoints"), folder / "staging", 2, run=run)
    spec = store.RunSpec(run=run, instance=instance, command=["true"], adopt=adopt, from_scratch=from_scratch)
    claim(checkpoints, KnownCheckpoints("place", folder / "known.json"), spec, "place")
    return checkpoints


def test_checkpoints_of_the_version_before_are_the_first_history(
    snapshots: "Snapshots", checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 10)
    snapshots.commit(checkpoints, 20)
    opened = start(tmp_path)
    assert (opened.history, opened.committed(), owners_of(opened)) == (1, [10, 20], {RUN})
    assert opened.fetch(20) == checkpoints.step_directory(20)


def test_another_name_is_refused_in_one_line_and_adopted(
    snapshots: "Snapshots", checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 10)
    with pytest.raises(OtherRunError, match=f"^--checkpoints place belongs to run {RUN}: use --run {RUN} .* --adopt"):
        start(tmp_path, "heir")
    adopted = start(tmp_path, "heir", adopt=True)
    assert (adopted.history, adopted.committed(), owners_of(adopted)) == (2, [10], {"heir"})
    assert start(tmp_path, "heir", adopt=True).history == 2, "another agent of the run finds it done"
    with pytest.raises(OtherRunError, match="belongs to run heir"):
        start(tmp_path, RUN, instance="j")


def test_from_scratch_begins_a_history_once_for_a_run_and_leaves_the_older_one(
    snapshots: "Snapshots", checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    manifest = snapshots.commit(checkpoints, 10)
    for _agent in range(2):
        begun = start(tmp_path, from_scratch=True)
        assert (begun.history, begun.committed(), begun.damaged()) == (2, [], [])
    assert begun.step_directory(10) == checkpoints.path / "history-0002" / "step-00000010"
    assert checkpoints.verify(10) == manifest
    assert start(tmp_path, instance="next", from_scratch=True).history == 3


def test_from_scratch_in_an_empty_place_is_the_first_history(tmp_path: Path) -> None:
    assert start(tmp_path, from_scratch=True).history == 1


def test_an_older_history_stays_until_the_newer_one_has_enough(
    snapshots: "Snapshots", checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    for step in (10, 20):
        snapshots.commit(checkpoints, step)
    checkpoints.keep(10, "loss spike")
    begun = start(tmp_path, from_scratch=True)

    def commit(step: int) -> None:
        for rank in range(2):
            snapshots.write(CheckpointDirectory(begun.step_directory(step).parent, 2), rank, step, 2, generation=2)
        assert begun.commit_if_complete(step, 2, RUN) is not None

    commit(5)
    assert checkpoints.committed() == [10, 20]
    commit(15)
    assert checkpoints.committed() == [10], "it is pinned"
    assert begun.committed() == [5, 15]


@pytest.mark.parametrize("gone", ["history-0002", "history-0002.json"])
def test_a_history_that_has_vanished_is_not_passed_over(
    gone: str, snapshots: "Snapshots", checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 10)
    opened = start(tmp_path)
    opened.begin(HistoryRecord(number=2, run=RUN, parent=1, parent_step=10))
    for rank in range(2):
        snapshots.write(CheckpointDirectory(checkpoints.path / "history-0002", 2), rank, 20, 2)
    assert opened.commit_if_complete(20, 2, RUN) is not None
    (checkpoints.path / gone).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointUnavailable, match=r"is missing, and .* is there: bring it back"):
        start(tmp_path, instance="next")
    (tmp_path / "elsewhere").rename(checkpoints.path / gone)
    assert start(tmp_path, instance="next").committed() == [10, 20]


def test_an_empty_mount_point_is_not_taken_for_a_run_without_checkpoints(tmp_path: Path) -> None:
    known = KnownCheckpoints("place", tmp_path / "known.json")
    known.note(1, [10, 20])
    again = KnownCheckpoints("place", tmp_path / "known.json")
    assert again.vanished(1, [], kept=2) == {10, 20}
    assert again.vanished(1, [20, 30], kept=2) == set(), "10 was removed to make room"
    assert again.vanished(1, [10], kept=2) == {20}
    assert KnownCheckpoints("elsewhere", tmp_path / "known.json").vanished(1, [], kept=2) == set()
    known.note(3, [40])
    with pytest.raises(CheckpointUnavailable, match=r"history-0003\.json is not there, and was"):
        known.check_history(2)


def test_nothing_is_written_where_checkpoints_were_and_the_place_is_not_mounted(
    snapshots: "Snapshots", checkpoints: CheckpointDirectory, tmp_path: Path
) -> None:
    snapshots.commit(checkpoints, 10)
    start(tmp_path)
    KnownCheckpoints("place", tmp_path / "known.json").note(1, [10])
    mounted = checkpoints.path.rename(tmp_path / "elsewhere")
    checkpoints.path.mkdir()
    start(tmp_path, instance="later")
    assert list(checkpoints.path.iterdir()) == []
    checkpoints.path.rmdir()
    mounted.rename(checkpoints.path)
    assert start(tmp_path, instance="later still").committed() == [10]

"""A place of checkpoints belongs to a run. A take-over or a new beginning needs a request."""

from pathlib import Path
from typing import Any

import pytest

from holdfast_agent.checkpoints.claim import OtherRunError, UnclaimableError, claim, owners_of
from holdfast_agent.checkpoints.known_checkpoints import KnownCheckpoints
from holdfast_checkpoint.checkpoint_errors import CheckpointUnavailable
from holdfast_checkpoint.format.bad_loss import BadLossRecord, bad_loss_name
from holdfast_checkpoint.format.history import HistoryRecord
from holdfast_checkpoint.store.directory import CheckpointDirectory
from holdfast_checkpoint.store.run_checkpoints import RunCheckpoints, open_checkpoints
from holdfast_proto.left_out import to_messages
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.session_pb2 import LeftOut
from tests.support.snapshots import RUN, Snapshots


class ClaimedPlace:
    """A folder of checkpoints, and its first history."""

    def __init__(self, folder: Path, first: CheckpointDirectory, snapshots: Snapshots) -> None:
        self.folder, self.first, self.snapshots = folder, first, snapshots

    def commit(self, *steps: int) -> None:
        """Commit checkpoints of the first history."""
        for step in steps:
            self.snapshots.commit(self.first, step)

    def start(self, run: str = RUN, *, instance: str = "i", **fields: Any) -> RunCheckpoints:
        """Claim the place as the agents of a run do."""
        checkpoints = open_checkpoints(str(self.first.path), self.folder / "staging", 2, run=run)
        spec = store.RunSpec(run=run, instance=instance, command=["true"], **fields)
        claim(checkpoints, KnownCheckpoints("place", self.folder / "known.json"), spec, "place")
        return checkpoints


@pytest.fixture
def place(tmp_path: Path, checkpoints: CheckpointDirectory, snapshots: Snapshots) -> ClaimedPlace:
    return ClaimedPlace(tmp_path, checkpoints, snapshots)


def test_checkpoints_of_the_version_before_are_the_first_history(place: ClaimedPlace) -> None:
    place.commit(10, 20)
    opened = place.start()
    assert (opened.history, opened.committed(), owners_of(opened)) == (1, [10, 20], {RUN})
    assert opened.at(20).fetch(20) == place.first.step_directory(20)


def test_another_name_is_refused_in_one_line_and_adopted(place: ClaimedPlace) -> None:
    place.commit(10)
    with pytest.raises(OtherRunError, match=f"^--checkpoints place belongs to run {RUN}: use --run {RUN} .* --adopt"):
        place.start("heir")
    adopted = place.start("heir", adopt=True)
    assert (adopted.history, adopted.committed(), owners_of(adopted)) == (2, [10], {"heir"})
    assert place.start("heir", adopt=True).history == 2, "another agent of the run finds it done"
    with pytest.raises(OtherRunError, match="belongs to run heir"):
        place.start(RUN, instance="j")


def test_from_scratch_begins_a_history_once_for_a_run_and_leaves_the_older_one(place: ClaimedPlace) -> None:
    place.commit(10)
    manifest = place.first.verify(10)
    for _agent in range(2):
        begun = place.start(from_scratch=True)
        assert (begun.history, begun.committed(), begun.damaged()) == (2, [], [])
    assert begun.at(10).step_directory(10) == place.first.path / "history-0002" / "step-00000010"
    assert place.first.verify(10) == manifest
    assert place.start(instance="next", from_scratch=True).history == 3


def test_from_scratch_in_an_empty_place_is_the_first_history(place: ClaimedPlace) -> None:
    assert place.start(from_scratch=True).history == 1


def test_an_older_history_stays_until_the_newer_one_has_enough(place: ClaimedPlace) -> None:
    place.commit(10, 20)
    place.first.keep(10, "loss spike")
    begun = place.start(from_scratch=True)

    def commit(step: int) -> None:
        for rank in range(2):
            place.snapshots.write(
                CheckpointDirectory(begun.at(step).step_directory(step).parent, 2), rank, step, 2, generation=2
            )
        assert begun.commit_if_complete(step, 2, RUN) is not None

    commit(5)
    assert place.first.committed() == [10, 20]
    commit(15)
    assert place.first.committed() == [10], "it is pinned"
    assert begun.committed() == [5, 15]


@pytest.mark.parametrize("gone", ["history-0002", "history-0002.json"])
def test_a_history_that_has_vanished_is_not_passed_over(place: ClaimedPlace, gone: str) -> None:
    place.commit(10)
    opened = place.start()
    opened.histories.begin(HistoryRecord(number=2, run=RUN, parent=1, parent_step=10))
    for rank in range(2):
        place.snapshots.write(CheckpointDirectory(place.first.path / "history-0002", 2), rank, 20, 2)
    assert opened.commit_if_complete(20, 2, RUN) is not None
    (place.first.path / gone).rename(place.folder / "elsewhere")
    with pytest.raises(CheckpointUnavailable, match=r"is missing, and .* is there: bring it back"):
        place.start(instance="next")
    (place.folder / "elsewhere").rename(place.first.path / gone)
    assert place.start(instance="next").committed() == [10, 20]


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


def test_nothing_is_written_where_checkpoints_were_and_the_place_is_not_mounted(place: ClaimedPlace) -> None:
    place.commit(10)
    place.start()
    KnownCheckpoints("place", place.folder / "known.json").note(1, [10])
    mounted = place.first.path.rename(place.folder / "elsewhere")
    place.first.path.mkdir()
    place.start(instance="later")
    assert list(place.first.path.iterdir()) == []
    place.first.path.rmdir()
    mounted.rename(place.first.path)
    assert place.start(instance="later still").committed() == [10]


def test_a_start_may_continue_from_an_older_checkpoint_and_leaves_the_newer_ones(place: ClaimedPlace) -> None:
    place.commit(10, 20)
    with pytest.raises(
        ValueError, match=r"^--continue-from 15: --checkpoints place has no checkpoint .* steps 10, 20$"
    ):
        place.start(continue_from=15)
    for _agent in range(2):
        opened = place.start(continue_from=10)
        assert (opened.history, opened.committed()) == (2, [10])
    assert place.first.committed() == [10, 20], "they stay"
    assert place.start(instance="next").committed() == [10], "the next start continues the same line"


def test_an_agent_that_comes_late_does_not_go_back_again(place: ClaimedPlace) -> None:
    place.commit(10)
    opened = place.start(continue_from=10)
    assert opened.history == 2, "also if nothing is newer"
    place.snapshots.commit(CheckpointDirectory(place.folder / "checkpoints" / "history-0002", 2), 20)
    assert place.start(continue_from=10).committed() == [10, 20]


def test_after_a_bad_loss_a_start_must_say_where_to_continue(place: ClaimedPlace) -> None:
    place.commit(10, 20)
    place.start().histories.note_bad_loss(BadLossRecord(from_step=12, reason="NaN"))
    with pytest.raises(
        UnclaimableError, match=r"of step 12 or later may hold the bad state: .* --continue-from 10, or"
    ):
        place.start(instance="next")
    assert place.start(instance="next", continue_from=10).committed() == [10]
    assert place.start(instance="later").committed() == [10], "its line of training is a good one"


def test_after_a_bad_loss_a_person_may_still_trust_the_newest(place: ClaimedPlace) -> None:
    place.commit(10)
    place.start().histories.note_bad_loss(BadLossRecord(from_step=0, reason="NaN"))
    with pytest.raises(UnclaimableError, match="--continue-from and a step that is good, or with --from-scratch"):
        place.start(instance="next")
    assert place.start(instance="next", continue_from=10).committed() == [10]
    assert place.start(instance="later").committed() == [10]


def test_without_a_doubtful_checkpoint_a_start_after_a_bad_loss_needs_nothing(place: ClaimedPlace) -> None:
    place.start().histories.note_bad_loss(BadLossRecord(from_step=12, reason="NaN"))
    assert place.start(instance="empty").committed() == []
    place.commit(10)
    assert place.start(instance="next").committed() == [10]


def test_a_damaged_record_of_a_bad_loss_is_one(place: ClaimedPlace) -> None:
    place.commit(10)
    place.start()
    (place.first.path / bad_loss_name(1)).write_bytes(b"?")
    with pytest.raises(UnclaimableError):
        place.start(instance="next")


def test_a_new_line_keeps_the_proven_checkpoint_of_the_old_one_until_it_has_one_of_its_own(place: ClaimedPlace) -> None:
    place.commit(10)
    place.first.prove(10, 11)
    opened = place.start(from_scratch=True)
    for step in (5, 6):
        place.snapshots.commit(opened, step)
    assert place.first.committed() == [10], "no finite loss has followed the new ones"
    opened.at(6).prove(6, 7)
    place.snapshots.commit(opened, 8)
    assert place.first.committed() == []


def test_what_a_history_leaves_out_is_kept_and_passed_on_but_not_to_a_start_from_scratch(place: ClaimedPlace) -> None:
    place.commit(10, 20)
    opened = place.start()
    record = HistoryRecord(number=2, run=RUN, parent=1, parent_step=10, left_out=((11, 5), (40, 2)))
    opened.histories.begin(record)
    assert opened.histories.left_out == HistoryRecord.decode(record.encode()).left_out == ((11, 5), (40, 2))
    again = place.start(instance="j", continue_from=10)
    assert (again.history, again.histories.left_out) == (3, ((11, 5), (40, 2)))
    scratch = place.start(instance="k", from_scratch=True)
    assert (scratch.history, scratch.histories.left_out) == (4, ())


def windows(*left_out: tuple[int, int]) -> list[LeftOut]:
    return to_messages(left_out)


def test_data_that_a_start_names_are_kept_with_the_line_as_far_as_they_lie_ahead(place: ClaimedPlace) -> None:
    first = place.start(left_out=windows((3, 2), (30, 10)))
    assert (first.history, first.histories.left_out) == (1, ((3, 2), (30, 10)))
    place.commit(10, 20)
    again = place.start(instance="j", left_out=windows((3, 2), (30, 10)))
    assert (again.history, again.histories.left_out) == (1, ((3, 2), (30, 10))), "nothing is new"
    assert place.start(instance="k").histories.left_out == ((3, 2), (30, 10)), "also without the flag"
    more = place.start(instance="l", left_out=windows((0, 28)))
    assert (more.history, more.histories.left_out) == (2, ((3, 2), (23, 5), (30, 10))), "step 20 trained on data 22"
    other = place.start(instance="l", left_out=windows((0, 28)))
    assert (other.history, other.histories.left_out) == (2, ((3, 2), (23, 5), (30, 10))), "another agent finds it done"
    assert other.committed() == [10, 20]


def test_a_start_from_scratch_leaves_out_what_it_names_itself(place: ClaimedPlace) -> None:
    assert place.start(from_scratch=True).history == 1
    assert place.start(instance="j", from_scratch=True, left_out=windows((3, 2))).history == 2
    assert place.start(instance="k").histories.left_out == ((3, 2),)


def test_a_history_that_leaves_nothing_out_is_written_as_before() -> None:
    assert b"left_out" not in HistoryRecord(number=2, run=RUN).encode()

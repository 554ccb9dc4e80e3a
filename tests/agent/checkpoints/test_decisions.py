"""Decisions about shards and sources of checkpoints. They need no disk and no clock."""

import pytest

from holdfast_agent.checkpoints.restorer import reason_of
from holdfast_agent.snapshots.rank_slots import must_be_written
from holdfast_checkpoint.checkpoint_errors import CheckpointError, CheckpointUnavailable, CheckpointUnreadable
from holdfast_proto.snapshot import Header, SlotState

DAMAGED = CheckpointUnreadable("rank-00001.shard is damaged")
MISSING = CheckpointUnavailable("no such file")
REFUSED = CheckpointError("access denied")


def header(*, state: SlotState = SlotState.COMPLETE, persist: bool = True) -> Header:
    return Header(
        state=state, persist=persist, generation=1, step=10, rank=0, data_bytes=0, meta_offset=0, meta_bytes=0
    )


@pytest.mark.parametrize(
    ("slot", "expected"),
    [(None, False), (header(persist=False), False), (header(state=SlotState.WRITING), False), (header(), True)],
)
def test_a_complete_and_pinned_slot_of_a_rank_that_has_ended_is_written(slot: Header | None, expected: bool) -> None:
    assert must_be_written(slot) is expected


@pytest.mark.parametrize("secondary", [CheckpointUnreadable("also damaged"), MISSING], ids=["damaged", "missing"])
def test_damage_in_every_place_that_has_it_makes_a_checkpoint_unreadable(secondary: CheckpointError) -> None:
    assert reason_of([(False, DAMAGED), (True, secondary)], "") is DAMAGED


@pytest.mark.parametrize("failures", [[(False, MISSING)], [(False, MISSING), (True, DAMAGED)], [(True, REFUSED)]])
def test_files_that_may_come_back_make_it_unavailable(failures: list[tuple[bool, CheckpointError]]) -> None:
    reason = reason_of(failures, "; remove the list")
    assert isinstance(reason, CheckpointUnavailable)
    assert str(reason) == f"{failures[0][1]}; remove the list"


def test_secondary_that_cannot_be_asked_about_a_damaged_checkpoint_may_still_hold_it() -> None:
    assert str(reason_of([(False, DAMAGED), (True, REFUSED)], "")) == "access denied"

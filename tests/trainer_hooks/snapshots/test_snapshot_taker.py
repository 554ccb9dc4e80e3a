import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast_hooks.phases import Phase
from holdfast_hooks.snapshots import slot_requests, snapshot_taker
from holdfast_hooks.snapshots.slot_choice import choose_slot
from holdfast_proto.snapshot import Header, Slot, SlotState

MakeSlots = Callable[..., list[Path]]


class Counter:
    """A state that knows the step it is at."""

    def __init__(self) -> None:
        self.value = torch.zeros(4)
        self.extra: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.extra = state["value"], state["extra"]


def headers(paths: list[Path]) -> list[tuple[SlotState, int, bool]]:
    found = []
    for path in paths:
        with Slot(path) as slot:
            found.append((slot.header.state, slot.header.step, slot.header.persist))
    return found


def unpin(path: Path) -> None:
    with Slot(path) as slot:
        slot.set_persist(False)


def header(state: SlotState, step: int, *, generation: int = 2, persist: bool = False, replica: bool = False) -> Header:
    return Header(state, persist, generation, step, 0, 0, 0, 0, replica)


EMPTY = header(SlotState.EMPTY, -1, generation=0)
PINNED = header(SlotState.COMPLETE, 3, persist=True)


@pytest.mark.parametrize(
    ("slots", "restored", "chosen"),
    [
        ([EMPTY, EMPTY, EMPTY], None, 0),
        ([header(SlotState.COMPLETE, 4), EMPTY, EMPTY], None, 1),
        ([header(SlotState.COMPLETE, 4), header(SlotState.COMPLETE, 5), header(SlotState.WRITING, 6)], None, 2),
        ([header(SlotState.COMPLETE, 6), header(SlotState.COMPLETE, 5), header(SlotState.COMPLETE, 4)], None, 2),
        ([header(SlotState.COMPLETE, 5), header(SlotState.COMPLETE, 4, persist=True)], None, 0),
        ([header(SlotState.COMPLETE, 5, persist=True), header(SlotState.COMPLETE, 4)], None, 1),
        ([header(SlotState.COMPLETE, 5, persist=True), header(SlotState.WRITING, 6)], None, 1),
        ([header(SlotState.COMPLETE, 5, persist=True), header(SlotState.COMPLETE, 4, persist=True)], None, None),
        # Of three, one is free though another is pinned.
        ([header(SlotState.COMPLETE, 5), header(SlotState.COMPLETE, 4, persist=True), EMPTY], None, 2),
        # A slot that is pinned for a replica is none to write to either.
        ([header(SlotState.COMPLETE, 5), header(SlotState.COMPLETE, 4, replica=True), EMPTY], None, 2),
        ([header(SlotState.COMPLETE, 5), header(SlotState.COMPLETE, 4, replica=True)], None, 0),
        # Of three or more, the newest is overwritten only if all others are pinned.
        ([PINNED, header(SlotState.COMPLETE, 5), header(SlotState.COMPLETE, 4, replica=True)], None, 1),
        ([PINNED, header(SlotState.COMPLETE, 9), header(SlotState.COMPLETE, 4, replica=True), EMPTY], None, 3),
        ([PINNED, header(SlotState.WRITING, 5), header(SlotState.COMPLETE, 4, replica=True)], None, 1),
        ([PINNED, header(SlotState.COMPLETE, 5), header(SlotState.COMPLETE, 6)], None, 1),
        # After a rollback, the state from which this generation started counts more than a later step of an older one.
        ([header(SlotState.COMPLETE, 9, generation=1), header(SlotState.COMPLETE, 4, generation=0)], 1, 0),
        # From its first own snapshot on, that one is the newest.
        ([header(SlotState.COMPLETE, 9, generation=1), header(SlotState.COMPLETE, 5, generation=2)], 0, 0),
    ],
    ids=str,
)
def test_oldest_free_slot_is_written_and_the_newest_snapshot_kept_unless_all_others_are_pinned(
    slots: list[Header], restored: int | None, chosen: int | None
) -> None:
    assert choose_slot(slots, restored=[i == restored for i in range(len(slots))], generation=2) == chosen


def test_slots_are_asked_for_after_the_first_step_and_snapshots_follow_the_grant(
    bench: Any, make_slots: MakeSlots
) -> None:
    run = bench({"counter": Counter()}, snapshot_every=2)
    assert run.end(0) is None
    request = run.slot_requests.next_request()
    assert (request.bytes_per_slot > 1 << 20, request.slots) == (True, 2)
    assert run.slot_requests.next_request() is None
    assert (run.end(1), run.snapshots.skipped_total) == (None, 1)
    paths = make_slots(nbytes=request.bytes_per_slot)
    run.grant(paths)
    assert run.end(2) is None
    taken = run.end(3)
    assert (taken.step, taken.persist, taken.stall_s > 0) == (3, False, True)
    assert headers(paths)[taken.slot] == (SlotState.COMPLETE, 3, False)
    assert run.snapshots.skipped_total == 1
    assert run.timeline.phase == Phase.CHECKPOINT


def test_snapshot_holds_the_state_of_its_step(bench: Any, make_slots: MakeSlots) -> None:
    counter = Counter()
    run = bench({"counter": counter}, make_slots(), snapshot_every=1)
    for step in range(5):
        counter.value += 1
        taken = run.end(step)
        with Slot(run.paths[taken.slot]) as slot:
            entry = next(entry for entry in slot.meta().tensors if entry.name == "counter/value")
            assert bytes(slot.tensor_bytes(entry)) == counter.value.numpy().tobytes()
    assert sorted(step for _, step, _ in headers(run.paths)) == [2, 3, 4]


def test_due_checkpoint_is_pinned_and_skipped_while_the_one_before_is(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots(), snapshot_every=1, checkpoint_every=2)
    taken = [run.end(step) for step in range(4)]
    assert [snapshot.persist for snapshot in taken] == [False, True, False, False]
    assert run.snapshots.skipped_total == 1
    pinned = taken[1].slot
    assert headers(run.paths)[pinned] == (SlotState.COMPLETE, 1, True)
    assert all(snapshot.slot != pinned for snapshot in taken[2:])
    unpin(run.paths[pinned])
    assert run.end(5).persist
    assert run.snapshots.skipped_total == 1


@pytest.fixture
def pinned(bench: Any, make_slots: MakeSlots) -> Any:
    """A rank with two slots, of which one is pinned for the checkpoint of step 1, and the other holds step 2."""
    run = bench({"counter": Counter()}, make_slots(2), snapshot_every=1)
    slots = [run.end(step, commanded=step == 1).slot for step in range(3)]
    assert slots == [0, 1, 0]
    return run


def test_while_one_of_two_slots_is_pinned_snapshots_continue_in_the_other(pinned: Any) -> None:
    assert [pinned.end(step).slot for step in (3, 4)] == [0, 0]
    assert headers(pinned.paths) == [(SlotState.COMPLETE, 4, False), (SlotState.COMPLETE, 1, True)]
    unpin(pinned.paths[1])
    assert [pinned.end(step).slot for step in (5, 6)] == [1, 0]
    assert pinned.snapshots.skipped_total == 0


def test_the_next_checkpoint_takes_the_slot_of_one_that_is_written(pinned: Any) -> None:
    assert not pinned.end(3, commanded=True).persist
    assert pinned.snapshots.skipped_total == 1
    unpin(pinned.paths[1])
    taken = pinned.end(4, commanded=True)
    assert (taken.slot, taken.persist) == (1, True)
    assert headers(pinned.paths) == [(SlotState.COMPLETE, 3, False), (SlotState.COMPLETE, 4, True)]


def test_a_commanded_snapshot_is_pinned_although_none_is_due(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots())
    assert run.end(0) is None
    assert run.end(1, commanded=True).persist
    request = run.slot_requests.next_request()  # slots of an earlier generation are used before the agent answers
    assert (request.bytes_per_slot, request.slots) == (1 << 20, 2)
    assert run.slot_requests.next_request() is None


def ended_while(run: Any, step: int, happens: Callable[..., None], *arguments: object) -> Any:
    """Return the snapshot of a last step, during which something happens a moment later."""
    other = threading.Timer(0.05, happens, arguments)
    other.start()
    taken = run.end(step, last=True)
    other.join()
    return taken


def test_last_step_waits_until_the_checkpoint_before_is_written(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots(), snapshot_every=1, checkpoint_every=1)
    before = run.end(0)
    assert ended_while(run, 1, unpin, run.paths[before.slot]).persist
    assert run.snapshots.skipped_total == 0


def test_last_step_waits_for_the_grant(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()})
    assert ended_while(run, 0, run.grant, make_slots()).persist


def test_last_step_does_not_wait_forever(bench: Any, make_slots: MakeSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_taker, "_GRANT_WAIT_S", 0.02)
    monkeypatch.setattr(snapshot_taker, "_PIN_WAIT_S", 0.02)
    run = bench({"counter": Counter()}, snapshot_every=1, checkpoint_every=1)
    assert (run.end(0, last=True), run.snapshots.skipped_total) == (None, 1)
    run.grant(make_slots())
    assert (run.end(1).persist, run.end(2, last=True).persist) == (True, False)
    assert run.snapshots.skipped_total == 2


def test_state_that_outgrows_its_slots_asks_for_larger_ones(bench: Any, make_slots: MakeSlots) -> None:
    counter = Counter()
    run = bench({"counter": counter}, snapshot_every=1)
    small = make_slots(nbytes=64 << 10)
    run.grant(small)
    assert run.end(0) is not None
    counter.extra = torch.zeros(100_000)
    assert run.end(1) is None
    wanted = run.slot_requests.next_request().bytes_per_slot
    assert wanted > 400_000
    assert run.end(2) is None
    assert run.slot_requests.next_request() is None
    assert run.snapshots.skipped_total == 2
    large = make_slots(nbytes=wanted, prefix="large")
    run.grant(large)
    taken = run.end(3)
    assert headers(large)[taken.slot] == (SlotState.COMPLETE, 3, False)
    assert headers(small)[0] == (SlotState.COMPLETE, 0, False)


def test_refused_memory_is_counted_and_asked_for_again_later(
    bench: Any, make_slots: MakeSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench({"counter": Counter()}, snapshot_every=1)
    run.end(0)
    assert run.slot_requests.next_request() is not None
    run.grant([], reason="no room")
    run.slot_requests.forget_request()
    assert (run.end(1), run.end(2, last=True), run.snapshots.skipped_total) == (None, None, 3)
    assert run.slot_requests.next_request() is None
    pass_time(monkeypatch, slot_requests.ASK_AGAIN_S)
    assert run.slot_requests.next_request() is not None
    assert run.slot_requests.next_request() is None
    run.grant(make_slots())
    assert run.end(3) is not None


def test_slots_that_cannot_be_opened_are_asked_for_again_later(
    bench: Any, make_slots: MakeSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Slot:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    run = bench({"counter": Counter()}, snapshot_every=1)
    run.end(0)
    assert run.slot_requests.next_request() is not None
    paths = make_slots()
    with monkeypatch.context() as patch:
        patch.setattr(slot_requests, "Slot", refuse)
        run.grant(paths)
    assert run.end(1) is None
    assert run.slot_requests.next_request() is None
    pass_time(monkeypatch, slot_requests.ASK_AGAIN_S)
    assert run.slot_requests.next_request() is not None
    run.grant(paths)
    assert run.end(2) is not None


def replicas(run: Any) -> list[tuple[int, bool]]:
    """Return step and persist of the slots that are pinned for a replica snapshot."""
    found = [Slot(path).header for path in run.paths]
    return [(one.step, one.persist) for one in found if one.replica]


def test_a_snapshot_for_a_replica_is_taken_and_pinned_until_it_is_released(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots(3), snapshot_every=2)
    assert run.end(0) is None
    taken = run.end(2, replica=True)  # no snapshot of this step is due
    assert (taken.replica, taken.persist) == (True, False)
    later = [run.end(step) for step in (3, 5, 7, 9)]
    assert [one.replica for one in later] == [False] * 4
    assert taken.slot not in [one.slot for one in later]
    assert replicas(run) == [(2, False)]
    with Slot(run.paths[taken.slot]) as slot:
        slot.release_replica()
    assert run.end(11).slot == taken.slot
    assert run.snapshots.skipped_total == 0


@pytest.mark.parametrize(
    ("count", "before", "pinned"),
    [
        (2, {}, False),
        (3, {}, True),
        (3, {"commanded": True}, False),
        (4, {"commanded": True}, True),
        (4, {"replica": True}, False),
    ],
    ids=["two slots", "one to spare", "a checkpoint pins it", "two to spare", "one replica at a time"],
)
def test_a_rank_keeps_two_slots_and_makes_one_replica_at_a_time(
    bench: Any, make_slots: MakeSlots, count: int, before: dict[str, bool], pinned: bool
) -> None:
    run = bench({"counter": Counter()}, make_slots(count), snapshot_every=1)
    run.end(0, **before)
    taken = run.end(1, replica=True)
    assert (taken.step, taken.replica) == (1, pinned)
    assert ((1, False) in replicas(run)) == pinned
    assert run.snapshots.skipped_total == 0


def test_a_checkpoint_is_not_skipped_because_of_a_replica(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots(3), snapshot_every=1)
    assert run.end(0, replica=True).replica
    assert run.end(1, commanded=True).persist
    assert [run.end(step).slot for step in (2, 3)] == [2, 2]
    assert headers(run.paths)[2] == (SlotState.COMPLETE, 3, False)
    assert run.snapshots.skipped_total == 0


def test_one_snapshot_may_be_for_both_a_checkpoint_and_a_replica(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots(3), snapshot_every=1)
    taken = run.end(0, commanded=True, replica=True)
    assert (taken.persist, taken.replica) == (True, True)
    assert replicas(run) == [(0, True)]
    unpin(run.paths[taken.slot])
    assert taken.slot not in [run.end(step).slot for step in (1, 2, 3)]


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now_s = time.monotonic() + seconds
    monkeypatch.setattr(slot_requests, "monotonic", lambda: now_s)


def test_slots_on_disk_are_written_for_checkpoints_only(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, snapshot_every=1, checkpoint_every=3)
    run.paths = make_slots()
    run.grant(run.paths, on_disk=True)
    assert [run.end(step, replica=True) is not None for step in range(6)] == [False, False, True, False, False, False]
    assert replicas(run) == []
    assert run.snapshots.skipped_total == 1


def test_torn_snapshot_is_overwritten_first(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots(), snapshot_every=1)
    run.end(0)
    run.end(1)
    with Slot(run.paths[1]) as slot:
        slot.begin(generation=2, step=9, rank=0)
    run.end(2)
    assert run.end(3).slot in (1, 2)
    assert (SlotState.WRITING, 9, False) not in headers(run.paths)


def test_failing_state_is_counted_and_training_continues(
    bench: Any, make_slots: MakeSlots, caplog: pytest.LogCaptureFixture
) -> None:
    counter = Counter()
    run = bench({"counter": counter}, make_slots(), snapshot_every=1)
    counter.state_dict = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    assert (run.end(0), run.end(1), run.snapshots.skipped_total) == (None, None, 2)
    assert caplog.messages == ["a snapshot failed, training continues: ZeroDivisionError('division by zero')"]
    del counter.state_dict
    assert run.end(2) is not None


def test_state_that_becomes_unfit_ends_snapshots_with_one_line(
    bench: Any, make_slots: MakeSlots, caplog: pytest.LogCaptureFixture
) -> None:
    counter = Counter()
    run = bench({"counter": counter}, make_slots(), snapshot_every=1)
    assert run.end(0) is not None
    counter.extra = object()
    assert (run.end(1), run.end(2), run.snapshots.skipped_total) == (None, None, 2)
    (line,) = caplog.messages
    assert "counter/extra: a value of type object" in line


def test_repeated_grant_of_the_same_files_changes_nothing(bench: Any, make_slots: MakeSlots) -> None:
    run = bench({"counter": Counter()}, make_slots(), snapshot_every=1)
    grant = run.slot_requests.grant
    run.grant(run.paths)
    assert run.slot_requests.grant is grant
    run.paths[0].unlink()
    make_slots(1)
    run.grant(run.paths)
    assert run.slot_requests.grant is not grant

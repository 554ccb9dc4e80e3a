from pathlib import Path
from typing import Any

from holdfast_hooks.progress.pending_calls import LONG_S, PendingCalls
from holdfast_proto import black_box
from holdfast_proto.black_box import BlackBoxWriter, NamedCall


def entry(seq: int, *, group: str = "g", record: int = 0, retired: bool = False) -> dict[str, Any]:
    return {
        "process_group": [group, ""],
        "collective_seq_id": seq,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4, seq]],
        "input_dtypes": ["Float"],
        "retired": retired,
        "record_id": record,
    }


def seqs_named(pending: PendingCalls) -> list[tuple[str, int]]:
    return [(call.group, call.seq) for call in pending.calls]


def test_a_call_is_named_once_it_has_been_pending_for_long_and_until_the_group_moves_on() -> None:
    pending = PendingCalls(None)
    assert not pending.observe({"1": (5, 4), "2": (3, 3)}, 10.0)
    assert not pending.observe({"1": (5, 4), "2": (3, 3)}, 10.0 + LONG_S / 2)
    assert pending.observe({"1": (5, 4), "2": (3, 3)}, 10.0 + LONG_S)
    pending.name({"1": [entry(4, retired=True), entry(5)], "2": [entry(3)]}, began_s=10.5, ended_s=10.6)
    (call,) = pending.calls
    assert (call.group, call.seq, call.op) == ("g", 5, "nccl:all_reduce")
    assert (call.sizes, call.dtypes) == ("[[4, 5]]", "['Float']")
    assert not pending.observe({"1": (5, 4), "2": (3, 3)}, 100.0)
    assert seqs_named(pending) == [("g", 5)]
    assert not pending.observe({"1": (6, 5), "2": (3, 3)}, 101.0)
    assert seqs_named(pending) == []


def test_another_stuck_call_waits_until_dumps_have_taken_little_of_the_time() -> None:
    pending = PendingCalls(None)
    pending.observe({"1": (5, 4)}, 10.0)
    assert pending.observe({"1": (5, 4)}, 10.5)
    pending.name({"1": [entry(5)]}, began_s=10.5, ended_s=10.6)
    pending.observe({"1": (6, 5)}, 10.7)
    assert not pending.observe({"1": (6, 5)}, 11.5)
    assert pending.observe({"1": (6, 5)}, 12.7)


def test_a_rank_that_ends_names_all_that_is_pending_and_the_newest_call_of_all() -> None:
    pending = PendingCalls(None)
    pending.observe({"1": (5, 4), "2": (3, 3), "3": (1, 1)}, 10.0)
    recorded = {
        "1": [entry(4, retired=True), entry(5, record=7)],
        "2": [entry(3, group="newest", record=9, retired=True)],
        "3": [entry(1, group="old", record=2, retired=True)],
    }
    pending.name_last(recorded)
    assert seqs_named(pending) == [("g", 5), ("newest", 3)]


def test_the_black_box_keeps_as_many_names_as_there_is_room_for(folder: Path) -> None:
    path = folder / "box"
    box = BlackBoxWriter(path, run="run", generation=1, rank=0, world_size=1)
    calls = [NamedCall("group", seq, "gloo:all_to_all", "[[1, 2, 3]]" * 10, "['Float']") for seq in range(100)]
    box.pending(calls)
    kept = black_box.read(path).pending
    assert 10 < len(kept) < 100
    assert list(kept) == calls[: len(kept)]
    box.pending([])
    assert black_box.read(path).pending == ()

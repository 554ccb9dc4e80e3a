"""Hangs of runs whose collectives run on devices: recorders name ranks, counters and looks do not."""

from collections.abc import Mapping

from holdfast_agent.evidence.recorder_dump import from_document
from holdfast_core.detectors import registry
from holdfast_core.detectors.hangs.device_call import DeviceCall
from holdfast_core.detectors.hangs.root_ranks import HungCollective
from holdfast_core.detectors.hangs.standstill import Standstill
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.recorder_documents import Document
from tests.support.views import LATE_S, Ranks


def dump(newest: int, completed: int, op: str = "all_reduce", *, world_size: int = 4) -> Document:
    """Return what NCCL's recorder holds of a rank that has made the calls up to ``newest`` in the world's group."""
    document = Document({"0": range(world_size)})
    for seq in range(1, newest + 1):
        document.call(op if seq == newest else "all_reduce", state="completed" if seq <= completed else "scheduled")
    return document


def on_devices(documents: Mapping[int, Document] | None = None) -> Ranks:
    """Return four ranks on GPUs that have stood still past their deadlines, with their recorders."""
    ranks = Ranks()
    for state in ranks.ranks.values():
        state.device = f"cuda:{state.rank}"
        state.recorders.add(source=common.RECORDER_SOURCE_NCCL, backend="nccl", full_dumps=True)
    ranks.recorders = {rank: from_document(document.document()) for rank, document in (documents or {}).items()}
    return ranks


def findings(ranks: Ranks) -> list[store.Verdict]:
    return [found for kind in registry.HANGS if (found := ranks.verdict(kind())) is not None]


def test_the_rank_that_has_not_made_the_call_is_named_with_what_it_rests_on() -> None:
    found = on_devices({0: dump(9, 7), 1: dump(7, 7), 2: dump(8, 7), 3: dump(9, 7)}).found(DeviceCall())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_HUNG_COLLECTIVE, [1])
    assert (found.group, found.seq, found.op) == ("0", 8, "all_reduce")
    assert found.message == (
        "rank 1 makes no progress in forward_backward of step 50; "
        "ranks 0, 2, 3 wait for it in all_reduce 8 of group 0 (by the ranks' recorders)"
    )
    assert list(found.hang.ranks[0].waiters) == [0, 2, 3]
    assert list(found.device_call.why) == ["rank 1 has no call of its own pending, and its newest call there is 7"]
    assert {(edge.waiter, edge.awaited) for edge in found.waits} == {(0, 1), (2, 1), (3, 1)}


def test_ranks_that_wait_for_data_are_a_data_stall_on_devices_too() -> None:
    ranks = on_devices({0: dump(9, 7), 1: dump(7, 7), 2: dump(7, 7), 3: dump(9, 7)})
    found = ranks.set(1, 2, phase=common.PHASE_DATA).found(DeviceCall())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_DATA_STALL, [1, 2])
    assert [held.missed.seq for held in found.hang.ranks] == [8, 8]


def test_the_first_verdict_of_all_is_that_of_the_recorders() -> None:
    ranks = on_devices({0: dump(9, 7), 1: dump(7, 7), 2: dump(8, 7), 3: dump(9, 7)})
    assert findings(ranks)[0].HasField("device_call")


def test_a_rank_that_still_moves_leaves_all_undecided() -> None:
    ranks = on_devices({0: dump(9, 7), 1: dump(7, 7), 2: dump(8, 7), 3: dump(9, 7)}).set(1, stalled_s=0.1)
    assert ranks.verdict(DeviceCall()) is None
    assert findings(ranks) == []


def test_without_recorders_nobody_is_named() -> None:
    ranks = on_devices()
    # A rank that waits for its device shows the same stack as one that runs its own code.
    ranks.stack(0, common.ACTIVITY_COLLECTIVE, "train (train.py:9)")
    ranks.stack(1, common.ACTIVITY_COLLECTIVE, "train (train.py:9)")
    ranks.stack(2, common.ACTIVITY_COLLECTIVE, "train (train.py:9)")
    assert ranks.stack(3, common.ACTIVITY_UNSPECIFIED, "train (train.py:7)").verdict(HungCollective()) is None
    assert ranks.verdict(DeviceCall()) is None
    assert list(ranks.found(Standstill()).culprits) == []


def test_counters_of_a_group_on_the_host_name_nobody_there_either() -> None:
    ranks = on_devices()
    ranks.group("gloo", {0: 5, 1: 4, 2: 5, 3: 5}, 4)  # rank 1 may wait for its device, and for another rank there
    assert ranks.verdict(HungCollective()) is None


def test_a_stopped_rank_is_named_without_any_recorder() -> None:
    ranks = on_devices().group("gloo", {0: 5, 1: 4, 2: 5, 3: 5}, 4).set(1, process_state="T")
    assert ranks.culprits(HungCollective()) == [1]


def test_a_call_that_all_have_made_accuses_no_rank() -> None:
    found = on_devices({rank: dump(8, 7) for rank in range(4)}).found(DeviceCall())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_TRANSPORT, [])
    assert found.message == (
        "all ranks of group 0 have entered call 8, and it does not complete: transport or device, not a rank "
        "(by the ranks' recorders)"
    )


def counters(numbers: dict[int, tuple[int, int]]) -> Ranks:
    """Return ranks on GPUs of which only the counters in their reports are known: calls made and completed."""
    ranks = on_devices()
    for rank, (made, done) in numbers.items():
        groups = ranks[rank].progress.device_groups
        source = common.RECORDER_SOURCE_NCCL
        groups.add(group="0", member_runs=[0, 1, 4], enqueued=made, completed=done, source=source)
    return ranks


def test_the_counters_of_reports_name_a_rank_with_little_confidence() -> None:
    found = counters({0: (9, 7), 1: (7, 7), 2: (8, 7), 3: (9, 7)}).found(DeviceCall())
    assert (found.kind, list(found.culprits), found.confidence_ratio) == (store.VERDICT_KIND_HUNG_COLLECTIVE, [1], 0.5)
    assert found.message.endswith("; ranks 0, 2, 3 wait for it in call 8 of group 0 (by counters alone)")
    assert list(found.waits) == []  # nothing is certain of it, so patience is that of time alone


def test_the_counters_of_a_rank_that_is_not_heard_of_are_not_compared() -> None:
    ranks = counters({0: (9, 7), 1: (7, 7), 2: (8, 7), 3: (9, 7)}).set(1, silent_s=LATE_S)
    assert ranks.verdict(DeviceCall()) is None


def test_a_missing_recorder_is_no_missing_call() -> None:
    found = on_devices({0: dump(8, 7), 1: dump(8, 7), 2: dump(8, 7)}).found(DeviceCall())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_STANDSTILL, [])
    assert list(found.device_call.suspects) == [3]
    assert list(found.waits) == []  # nothing shows that rank 3 has not made the call
    assert found.message.endswith("(by the recorders of 3 of 4 ranks)")


def test_a_rank_that_failed_explains_more_than_any_recorder() -> None:
    ranks = on_devices({0: dump(9, 7), 1: dump(7, 7), 2: dump(8, 7)}).end(3, signal=9)
    assert ranks.verdict(DeviceCall()) is None


def test_recorders_in_which_nobody_waits_say_nothing() -> None:
    assert on_devices({rank: dump(8, 8) for rank in range(4)}).verdict(DeviceCall()) is None


def test_a_dead_rank_that_no_call_shows_is_named_without_a_call() -> None:
    found = on_devices({rank: dump(8, 8) for rank in (0, 1, 2)}).end(3, code=0).found(DeviceCall())
    assert (list(found.culprits), found.group, found.seq, found.op) == ([3], "", 0, "")
    assert found.confidence_ratio == 0.8


def test_of_very_many_waits_those_for_the_culprit_are_kept() -> None:
    """Ranks 1 to 40 wait for rank 0, each in a pair of its own, and 0 waits for rank 41."""
    pairs = {f"p{rank}": (rank, 0) for rank in range(1, 41)}
    documents = {rank: Document({f"p{rank}": (rank, 0)}).pending(group=f"p{rank}") for rank in range(1, 41)}
    documents[0] = Document(pairs | {"last": (0, 41)}).call(group="last").pending(group="last")
    documents[41] = Document({"last": (0, 41)}).call(group="last")
    ranks = Ranks(42)
    ranks.recorders = {rank: from_document(document.document()) for rank, document in documents.items()}
    found = ranks.found(DeviceCall())
    assert (list(found.culprits), len(found.waits)) == ([41], 32)
    assert (found.waits[0].waiter, found.waits[0].awaited) == (0, 41)


def test_two_operations_under_one_number_are_a_mismatch_without_a_culprit() -> None:
    ranks = on_devices({0: dump(8, 7), 1: dump(8, 7), 2: dump(8, 7, "broadcast"), 3: dump(8, 7, "broadcast")})
    found = ranks.group("gloo", {0: 5, 1: 4, 2: 5, 3: 5}, 4).found(DeviceCall())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_MISMATCHED_ORDER, [])
    assert [list(side.ranks) for side in found.mismatch.sides] == [[0, 1], [2, 3]]
    assert list(found.waits) == [], "those of a group on hosts explain nothing here"
    assert found.mismatch.sides[0].call.op == "all_reduce of 4 elements of type Float"


def test_a_rank_that_has_ended_and_that_nobody_waits_for_hides_no_culprit() -> None:
    documents = {rank: dump(7 if rank == 1 else 9, 7, world_size=3) for rank in range(3)}
    ranks = on_devices(documents).end(3, code=0).stack(1, common.ACTIVITY_DISK, "save (train.py:3)")
    assert ranks.culprits(DeviceCall()) == [1]


def test_a_rank_in_a_socket_may_wait_for_a_communicator() -> None:
    ranks = on_devices({0: dump(2, 1), 1: dump(1, 1), 2: dump(1, 1), 3: dump(2, 1)})
    for rank in (1, 2):
        ranks[rank].blocked_on.activity = common.ACTIVITY_SOCKET
    assert list(ranks.found(DeviceCall()).culprits) == []

"""Which rank is named for a hang, and what it is reported to do."""

from collections.abc import Callable

import pytest

from holdfast_core.detectors.hangs.mismatched_order import MismatchedOrder
from holdfast_core.detectors.hangs.root_ranks import DataStall, HungCollective
from holdfast_core.detectors.hangs.transport import Transport
from holdfast_core.texts.hangs import awaited_calls
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import NOW, Ranks, hung_in_one_group


def culprits(ranks: Ranks) -> list[int]:
    verdict = ranks.verdict(HungCollective())
    return list(verdict.culprits) if verdict else []


def stopped(ranks: Ranks) -> None:
    ranks.set(1, process_state="T")


def held_by_a_debugger(ranks: Ranks) -> None:
    ranks.set(1, process_state="t")


def silent(ranks: Ranks) -> None:
    ranks.set(1, silent_s=5.0)


def silent_in_data(ranks: Ranks) -> None:
    ranks.set(1, phase=common.PHASE_DATA)
    silent(ranks)


def computing(ranks: Ranks) -> None:
    ranks.set(1, thread_state="R")


def in_the_kernel(ranks: Ranks) -> None:
    ranks.set(1, thread_state="D")


def locked(ranks: Ranks) -> None:
    ranks.stack(1, common.ACTIVITY_LOCK, "flush (metrics.py:41)")


def waits_for_a_file_lock(ranks: Ranks) -> None:
    ranks[1].blocked_on.CopyFrom(common.BlockedOn(activity=common.ACTIVITY_FILE_LOCK, path="/l", pid=9))


def has_a_stack_that_shows_more(ranks: Ranks) -> None:
    waits_for_a_file_lock(ranks)
    ranks.stack(1, common.ACTIVITY_COMPILER)
    ranks.stacks[1].blocked_on.CopyFrom(common.BlockedOn(activity=common.ACTIVITY_COMPILER, pid=9, command="cicc"))


def sleeps_perhaps_in_a_call(ranks: Ranks) -> None:
    ranks[1].blocked_on.activity = common.ACTIVITY_SLEEP


def silent_of_late(ranks: Ranks) -> None:
    ranks.set(1, silent_s=1.0)


def spinning_on_a_gpu(ranks: Ranks) -> None:
    ranks[1].device, ranks[1].thread_state = "cuda:1", "R"


@pytest.mark.parametrize(
    ("sign", "activity", "message"),
    [
        (stopped, common.ACTIVITY_STOPPED, "rank 1 is stopped in forward_backward of step 50"),
        (held_by_a_debugger, common.ACTIVITY_STOPPED, "rank 1 is held by a debugger or tracer in forward_backward"),
        (silent, common.ACTIVITY_GIL_HELD, "rank 1 holds its interpreter lock"),
        (silent_in_data, common.ACTIVITY_GIL_HELD, "rank 1 holds its interpreter lock in data"),
        (computing, common.ACTIVITY_USER_CODE, "rank 1 runs code of its own"),
        (in_the_kernel, common.ACTIVITY_SYSTEM_CALL, "rank 1 waits in a system call"),
        (locked, common.ACTIVITY_LOCK, "waits for a lock in forward_backward of step 50, at flush (metrics.py:41)"),
        (
            waits_for_a_file_lock,
            common.ACTIVITY_FILE_LOCK,
            "rank 1 waits in forward_backward of step 50 for the lock of /l, which pid 9 holds;",
        ),
        (
            has_a_stack_that_shows_more,
            common.ACTIVITY_COMPILER,
            "rank 1 waits in forward_backward of step 50 for the compiler pid 9 (cicc);",
        ),
        (sleeps_perhaps_in_a_call, common.ACTIVITY_UNSPECIFIED, "rank 1 makes no progress"),
        (silent_of_late, common.ACTIVITY_UNSPECIFIED, "rank 1 makes no progress"),
        (spinning_on_a_gpu, common.ACTIVITY_UNSPECIFIED, "rank 1 makes no progress"),
    ],
)
def test_what_the_root_does_is_reported(
    sign: Callable[[Ranks], None], activity: "common.Activity", message: str
) -> None:
    ranks = hung_in_one_group()
    sign(ranks)
    verdict = ranks.found(HungCollective())
    assert (list(verdict.culprits), verdict.activity) == ([1], activity)
    assert message in verdict.message


def test_the_missed_call_is_named_as_the_recorders_of_those_that_wait_name_it() -> None:
    ranks = hung_in_one_group().called((0, 2, 3), "0", 11, "nccl:all_reduce", "[[8]]")
    verdict = ranks.found(HungCollective())
    assert (verdict.group, verdict.seq, verdict.op) == ("0", 11, "nccl:all_reduce")
    assert verdict.message.endswith("; ranks 0, 2, 3 wait for it in nccl:all_reduce 11 of group 0 (mesh_dp)")


def test_a_root_is_judged_by_the_deadline_of_its_own_phase_whatever_those_that_wait_are_in() -> None:
    ranks = hung_in_one_group().set(1, phase=common.PHASE_EVAL)
    assert (culprits(ranks), culprits(ranks.set(1, stalled_s=25.0))) == ([], [1])
    assert culprits(hung_in_one_group().set(0, 2, 3, phase=common.PHASE_EVAL)) == [1]


def test_of_two_independent_hangs_both_are_named_the_surer_first_and_in_its_own_call() -> None:
    ranks = Ranks(6).group("a", {0: 4, 1: 5, 2: 5}, 4).group("b", {3: 8, 4: 7}, 7).set(4, process_state="T")
    verdict = ranks.found(HungCollective())
    assert (list(verdict.culprits), verdict.group, verdict.seq, verdict.confidence_ratio) == ([4, 0], "b", 8, 0.8)
    assert [edge.waiter for edge in verdict.waits] == [3, 1, 2]
    assert verdict.message.endswith(
        "rank 3 waits for it in collective 8 of group b; rank 0 makes no progress in forward_backward of step 50, too"
    )


def test_a_rank_without_data_is_named_in_the_verdict_on_another_one_that_hangs() -> None:
    ranks = Ranks().group("a", {0: 4, 1: 5}, 4).group("b", {2: 8, 3: 7}, 7).set(0, phase=common.PHASE_DATA)
    assert ranks.verdict(DataStall()) is None
    hung = ranks.found(HungCollective())
    assert (list(hung.culprits), hung.group) == ([3, 0], "b")
    assert hung.message.endswith("; rank 0 waits for data in data of step 50, too")


def test_a_rank_that_has_posted_ahead_and_computes_is_the_root_wherever_it_is_in_the_deadlock() -> None:
    """The shortest cycle is that of ranks 0 and 1, which only wait."""
    ranks = Ranks().group("a", {0: 5, 1: 4}, 4).group("b", {0: 8, 1: 9}, 8).group("c", {1: 3, 2: 2}, 2)
    assert ranks.group("d", {2: 7, 0: 6}, 6).verdict(MismatchedOrder()) is not None
    assert ranks.set(2, thread_state="R").verdict(MismatchedOrder()) is None
    assert culprits(ranks) == [2]


def test_ranks_of_a_deadlock_that_are_all_busy_elsewhere_are_all_named() -> None:
    ranks = Ranks(2).group("a", {0: 5, 1: 4}, 4).group("b", {0: 8, 1: 9}, 8).stack(0, common.ACTIVITY_LOCK)
    assert culprits(ranks.stack(1, common.ACTIVITY_LOCK)) == [0, 1]


def test_a_busy_rank_of_a_deadlock_is_not_judged_before_its_own_deadline() -> None:
    ranks = Ranks(2).group("a", {0: 5, 1: 4}, 4).group("b", {0: 8, 1: 9}, 8)
    ranks[1].progress.phase, ranks[1].thread_state = common.PHASE_EVAL, "R"
    assert culprits(ranks) == []
    assert ranks.verdict(MismatchedOrder()) is None


def test_a_rank_that_others_wait_for_while_a_call_that_all_have_entered_holds_it_is_not_named() -> None:
    ranks = Ranks().group("dp", {0: 9, 1: 9}, 8).group("tp", {0: 4, 2: 5}, 4)
    assert culprits(ranks) == []
    assert ranks.verdict(Transport()) is not None
    assert culprits(ranks.set(0, thread_state="R")) == [0]


def test_a_rank_that_has_not_reported_yet_the_end_of_the_call_that_held_it_is_not_named() -> None:
    """Rank 1 kept the others waiting. It has joined their call and continued."""
    ranks = Ranks().group("tp", {0: 5, 1: 8}, 4)
    ranks[1].progress.groups[0].completed = 8
    assert culprits(ranks.group("dp", {0: 9, 2: 10, 3: 10}, 9).set(0, thread_state="R")) == [0]
    assert culprits(ranks.set(1, stalled_s=0.1)) == []


def test_a_rank_that_has_not_reported_yet_calls_that_another_has_completed_with_it_is_not_named() -> None:
    """Rank 0 was held up by a message that has arrived. Rank 1 is some calls further."""
    ranks = Ranks().group("0", {0: 25, 1: 29, 2: 25, 3: 26}, 25)
    assert culprits(ranks) == [0, 2]
    ranks[1].progress.groups[0].completed = 29
    ranks[1].stalled_s = ranks[2].stalled_s = 0.1
    assert culprits(ranks) == []


def test_without_any_known_wait_ranks_that_are_busy_elsewhere_come_before_those_that_may_wait() -> None:
    ranks = Ranks()
    assert (culprits(ranks), culprits(ranks.set(2, process_state="T"))) == ([], [2])
    assert culprits(ranks.set(0, stalled_s=0.0)) == []


def test_a_rank_that_left_with_code_0_and_is_waited_for_is_the_root() -> None:
    ranks = hung_in_one_group().set(1, phase=common.PHASE_DATA)
    silent(ranks)
    ranks.end(1, at=NOW - 8.0, code=0)
    (finding,) = HungCollective().see_tick(ranks.view()).findings
    assert (list(finding.verdict.culprits), finding.verdict.activity) == ([1], common.ACTIVITY_UNSPECIFIED)
    assert finding.last_progress_unix_s == NOW - 8.0


def test_no_rank_is_judged_before_a_deadline_but_suspected_shortly_before_it() -> None:
    ranks = hung_in_one_group().set(*range(4), stalled_s=4.0)
    assert culprits(ranks) == []
    assert HungCollective().see_tick(ranks.view(suspicious=True)).findings


def test_while_a_node_is_missing_only_a_rank_that_is_seen_to_be_busy_elsewhere_is_judged() -> None:
    ranks = Ranks(8).group("0", {number: 10 if number == 1 else 11 for number in range(8)}, 10)
    ranks.missing = {"node1"}
    assert (culprits(ranks), culprits(ranks.set(1, process_state="T"))) == ([], [1])


def test_an_awaited_rank_of_which_nothing_was_ever_heard_is_not_judged() -> None:
    ranks = hung_in_one_group()
    del ranks.ranks[1]
    assert culprits(ranks) == []


def test_all_that_wait_are_counted_in_a_large_group() -> None:
    ranks = Ranks(400).group("0", {number: 10 if number == 399 else 11 for number in range(400)}, 10)
    verdict = ranks.found(HungCollective())
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 391 more wait for it" in verdict.message
    assert verdict.kind == store.VERDICT_KIND_HUNG_COLLECTIVE


@pytest.mark.parametrize(("silent_s", "expected"), [(0.1, [1]), (1.4, [])], ids=["reports", "reporter did not run"])
def test_a_root_whose_stack_shows_it_in_a_call_is_blamed_only_while_its_counters_are_new(
    silent_s: float, expected: list[int]
) -> None:
    ranks = hung_in_one_group()
    for number in range(4):
        ranks[number].silent_s = silent_s  # a loaded machine
    assert culprits(ranks.stack(1, common.ACTIVITY_COLLECTIVE, "reduce (train.py:9)")) == expected


def in_start(count: int = 4) -> Ranks:
    """Return ranks before their first step, without any group."""
    ranks = Ranks(count)
    for number in range(count):
        ranks[number].steps_done, ranks[number].progress.step = 0, -1
        ranks[number].progress.phase = common.PHASE_INIT
        ranks[number].stalled_s = 100.0
    return ranks


def test_a_rank_that_sleeps_before_the_first_group_exists_is_named_by_its_stack() -> None:
    ranks = in_start()
    for number in (0, 1, 3):
        ranks.stack(number, common.ACTIVITY_COLLECTIVE, "main (train.py:11)")
    found = ranks.stack(2, common.ACTIVITY_UNSPECIFIED, "load (train.py:9)").found(HungCollective())
    assert list(found.culprits) == [2]
    assert found.message == (
        "rank 2 makes no progress in init, before the first step, at load (train.py:9);"
        " others wait in the start of torch.distributed"
    )


def test_of_many_ranks_whose_stacks_show_their_own_code_none_is_blamed_for_one_that_waits() -> None:
    ranks = in_start(64).stack(0, common.ACTIVITY_COLLECTIVE, "main (train.py:11)")
    for number in (1, 2, 3):
        ranks.stack(number, common.ACTIVITY_UNSPECIFIED, "download (train.py:5)")
    assert culprits(ranks) == []


def test_ranks_that_all_sleep_in_the_start_are_not_blamed() -> None:
    ranks = in_start()
    for number in range(4):
        ranks.stack(number, common.ACTIVITY_UNSPECIFIED, "download (train.py:5)")
    assert culprits(ranks) == []


def test_a_rank_in_a_frozen_control_group_is_frozen_and_holds_no_lock() -> None:
    ranks = hung_in_one_group()
    ranks[1].silent_s = 5.0  # its reporter is frozen, too
    ranks[1].blocked_on.CopyFrom(common.BlockedOn(activity=common.ACTIVITY_STOPPED, call="freezer"))
    found = ranks.found(HungCollective())
    assert found.activity == common.ACTIVITY_STOPPED
    assert found.message.startswith("rank 1 is frozen with its control group in ")


@pytest.mark.parametrize("size", [64, 1000])
def test_a_verdict_says_in_constant_size_how_many_ranks_wait_in_each_call(size: int) -> None:
    ranks = Ranks(size).group("dp", {rank: 6 if rank == 5 else 7 for rank in range(size)}, 6)
    verdict = ranks.group("tp", {4: 2, 5: 1}, 1).found(HungCollective())
    assert list(verdict.culprits) == [5]
    assert len(verdict.waits) == 9 and verdict.waiting_ranks == size - 1
    assert sorted(call.line for call in awaited_calls(verdict.waits)) == [
        "rank 4 waits for rank 5 in collective 2 of tp",
        f"ranks 0, 1, 2, 3, 4, 6, 7, 8 and {size - 9} more wait for rank 5 in collective 7 of dp",
    ]

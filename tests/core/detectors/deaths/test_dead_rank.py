"""Which of several ends is the cause, and when that can be judged."""

import pytest

from holdfast_core.detectors.deaths.dead_rank import LOST_PEER_PATIENCE_S, SETTLE_S, UNEXPLAINED_PATIENCE_S, DeadRank
from holdfast_core.detectors.deaths.early_leave import WAITED_S
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import NOW, Ranks

LOST_PEER = "Traceback\nRuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:8070"
RAISED = "Traceback\nRuntimeError: something of torch's"
OWN_MISTAKE = 'Traceback\n  File "/home/train.py", line 9, in <module>\n    main()\nRuntimeError: bad sample'


def culprits(ranks: Ranks) -> list[int]:
    verdict = ranks.verdict(DeadRank())
    return list(verdict.culprits) if verdict else []


@pytest.mark.parametrize("number", [9, 11, 7])
def test_a_signal_that_no_lost_peer_causes_is_judged_immediately(number: int) -> None:
    assert culprits(Ranks().end(2, at=NOW, signal=number)) == [2]


def test_an_exception_is_judged_when_the_cascade_has_settled() -> None:
    ranks = Ranks().end(2, at=NOW, code=1, last_words=RAISED)
    assert culprits(ranks) == []
    ranks.first_exit_unix_s = NOW - SETTLE_S - 0.01
    assert culprits(ranks) == [2]


def test_an_exception_of_the_trainers_own_code_is_judged_immediately() -> None:
    assert culprits(Ranks().end(2, at=NOW, code=1, last_words=OWN_MISTAKE)) == [2]


def test_a_rank_that_left_early_is_judged_as_soon_as_another_has_lost_it() -> None:
    ranks = Ranks().end(2, at=NOW, code=0)
    assert (culprits(ranks), culprits(ranks.end(1, at=NOW, code=1, last_words=LOST_PEER))) == ([], [2])


def left_in_a_step(*, finished: bool) -> Ranks:
    """Return ranks of which rank 2 has left with code 0. All have reached call 10 of their group."""
    return Ranks().group("0", dict.fromkeys(range(4), 10), 10).end(2, at=NOW, code=0, finished=finished)


def enter(ranks: Ranks, number: int, seq: int, *, stalled_s: float = 0.0) -> None:
    ranks[number].progress.groups[0].enqueued = seq
    ranks[number].stalled_s = stalled_s


def test_a_rank_that_left_is_judged_as_soon_as_another_enters_a_call_that_it_never_entered() -> None:
    ranks = left_in_a_step(finished=True)
    assert culprits(ranks) == []
    enter(ranks, 3, 11)
    assert culprits(ranks) == [2]


def test_a_rank_that_left_is_judged_as_soon_as_another_posts_the_receipt_of_what_it_never_sent() -> None:
    ranks = left_in_a_step(finished=True).channel(2, 3, sent=5, delivered=5, posted=5, received=5)
    assert culprits(ranks) == []
    ranks[3].progress.channels[0].enqueued = 6
    assert culprits(ranks) == [2]


def test_a_call_that_the_rank_had_entered_before_it_left_does_not_miss_it() -> None:
    ranks = left_in_a_step(finished=True)
    enter(ranks, 2, 11)
    enter(ranks, 3, 11)
    assert culprits(ranks) == []


def test_a_rank_that_left_after_its_last_step_is_no_early_leaver() -> None:
    ranks = left_in_a_step(finished=True)
    enter(ranks, 3, 11)
    ranks[2].exit.phase = ranks[2].progress.phase = common.PHASE_IDLE
    assert culprits(ranks) == []


@pytest.mark.parametrize("newest", [{"finished": False}, {"finished": True, "step": 51}], ids=["hooks open", "old"])
def test_where_a_ranks_reports_may_lack_calls_the_others_must_have_waited_for_it(newest: dict[str, int]) -> None:
    ranks = left_in_a_step(finished=False)
    for name, value in newest.items():
        setattr(ranks[2].exit, name, value)
    for number in (0, 1, 3):
        enter(ranks, number, 11, stalled_s=WAITED_S - 0.1)
    assert culprits(ranks) == []
    for number in (0, 1, 3):
        enter(ranks, number, 11, stalled_s=WAITED_S)
    assert culprits(ranks) == [2]


def test_a_call_in_which_a_living_rank_is_missing_too_proves_nothing_about_one_that_left() -> None:
    ranks = left_in_a_step(finished=False)
    for number in (0, 1):
        enter(ranks, number, 11, stalled_s=10.0)
    assert culprits(ranks) == []


def test_an_exception_is_judged_immediately_when_all_ranks_have_ended() -> None:
    ranks = Ranks().end(2, at=NOW, code=1, last_words=RAISED)
    for number in (0, 1, 3):
        ranks.end(number, at=NOW - 0.01, code=1, last_words=LOST_PEER)
    assert culprits(ranks) == [2]


def test_an_abort_is_waited_out_because_a_watchdog_may_have_caused_it() -> None:
    assert culprits(Ranks().end(0, at=NOW, signal=6)) == []


def test_ranks_that_lost_a_peer_of_another_node_wait_for_its_lease() -> None:
    ranks = Ranks(8).end(0, code=1, last_words=LOST_PEER)
    ranks.first_exit_unix_s = NOW - LOST_PEER_PATIENCE_S + 0.1
    assert culprits(ranks) == []
    ranks.first_exit_unix_s = NOW - LOST_PEER_PATIENCE_S
    assert culprits(ranks) == [0]


def test_on_one_node_a_lost_peer_has_no_lease_to_wait_for() -> None:
    ranks = Ranks().end(0, at=NOW - UNEXPLAINED_PATIENCE_S - 0.01, code=1, last_words=LOST_PEER)
    assert culprits(ranks) == [0]


def test_a_rank_that_lost_a_peer_waits_for_the_exit_of_that_peer() -> None:
    ranks = Ranks().end(0, at=NOW - SETTLE_S - 0.1, code=1, last_words=LOST_PEER)
    assert culprits(ranks) == []
    ranks.end(2, at=NOW)  # nobody has seen how
    assert culprits(ranks) == [2]


def test_a_rank_that_left_with_code_0_comes_before_those_that_lost_it() -> None:
    ranks = Ranks().end(3, at=NOW - 1.0, code=0).end(1, at=NOW - 0.9, code=1, last_words=LOST_PEER)
    assert culprits(ranks) == [3]


def test_ranks_that_have_all_left_with_code_0_are_not_dead() -> None:
    ranks = Ranks()
    for number in range(4):
        ranks.end(number, code=0)
    assert culprits(ranks) == []


def test_a_wrong_configuration_is_reported_in_the_words_of_the_rank() -> None:
    verdict = Ranks().end(1, code=78, last_words="holdfast: model.dim is 3: make it even").found(DeadRank())
    assert (verdict.kind, verdict.message) == (store.VERDICT_KIND_BAD_CONFIGURATION, "model.dim is 3: make it even")


def test_ranks_that_somebody_has_paused_all_together_are_not_named_beside_a_death() -> None:
    ranks = Ranks().end(2, at=NOW, signal=9).set(0, 1, 3, process_state="T")
    assert (culprits(ranks), culprits(ranks.set(0, process_state="S"))) == ([2], [2, 1, 3])


NO_KEY = "Traceback\ntorch.distributed.DistStoreError: wait timeout after 20000ms, keys: /default_pg/0//cpu//0/2"
NOT_ALL = "Traceback\ntorch.distributed.DistStoreError: Timed out after 61 s waiting for clients. 2/4 clients joined."
SILENT = "Traceback\nRuntimeError: [unbound_buffer.cc:81] Timed out waiting 12000ms for recv operation to complete"


def gave_up(words: str, *numbers: int, step: int = -1) -> Ranks:
    """Return ranks of which some have given up waiting for others. ``step``: -1 in init."""
    ranks = Ranks()
    for number in numbers:
        ranks.end(number, at=NOW - UNEXPLAINED_PATIENCE_S - 0.01, code=1, last_words=words)
        ranks[number].exit.step = step
    return ranks


@pytest.mark.parametrize(("words", "named"), [(NO_KEY, [2]), (NOT_ALL, [2, 3])])
def test_who_never_came_to_init_is_named_and_not_those_that_gave_up(words: str, named: list[int]) -> None:
    ranks = gave_up(words, 0, 1)
    ranks[2].progress.CopyFrom(common.Progress(step=-1, phase=common.PHASE_INIT))
    assert culprits(ranks) == named
    found = ranks.found(DeadRank())
    assert found.message.startswith("ranks 0, 1 gave up waiting for rank")
    assert "rank 2" in found.message.partition("; ")[2]


def test_a_rank_that_holds_the_others_up_is_named_if_their_timeouts_come_first() -> None:
    assert culprits(gave_up(SILENT, 0, 1, 3, step=50).group("0", {0: 11, 1: 11, 2: 10, 3: 11}, 10)) == [2]


def test_if_no_living_rank_is_known_to_hold_them_up_those_that_ended_are_named() -> None:
    assert culprits(gave_up(SILENT, 0, 1, 3, step=50)) == [0, 1, 3]

"""Nodes that do not reach each other, before there is a call to judge by."""

from holdfast_core.detectors.hangs.unreachable import Unreachable
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import Ranks

NOT_CONNECTED = (
    "Traceback\n  File x\ntorch.distributed.DistNetworkError: The client socket has timed out after 4000ms"
    " while trying to connect to (10.0.0.1, 1234)."
)
NO_ANSWER = "Traceback\n  File x\ntorch.distributed.DistStoreError: wait timeout after 4000ms, keys: /default_pg/0//cpu"


def starting(count: int = 8) -> Ranks:
    """Return ranks that have been in init for long."""
    ranks = Ranks(count)
    for rank in ranks.ranks.values():
        rank.stalled_s, rank.steps_done, rank.device = 61.0, 0, ""
        rank.progress.CopyFrom(common.Progress(step=-1, phase=common.PHASE_INIT))
    return ranks


def waiting_in_init(*numbers: int) -> Ranks:
    ranks = starting()
    for number in numbers:
        ranks.stack(number, common.ACTIVITY_COLLECTIVE, "main (train.py:7)")
    return ranks


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(Unreachable())


def test_nodes_whose_ranks_all_wait_in_init_are_named_and_no_rank_is() -> None:
    found = waiting_in_init(*range(8)).found(Unreachable())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_TRANSPORT, [])
    assert found.message == (
        "nodes node0, node1 do not reach each other: ranks of each wait in init for others, and do not meet"
    )


def test_what_no_stack_shows_is_reported() -> None:
    found = waiting_in_init(0, 4).found(Unreachable())
    assert found.message.endswith(" (if none of the 6 ranks whose stacks were not taken is elsewhere)")


def test_one_node_alone_or_without_its_stacks_shows_nothing_about_a_link() -> None:
    assert verdict(waiting_in_init(0, 1)) is None
    assert verdict(starting()) is None


def test_a_rank_that_is_elsewhere_holds_the_others_up() -> None:
    assert verdict(waiting_in_init(0, 4).stack(5, common.ACTIVITY_LOCK, "load (data.py:3)")) is None
    assert verdict(waiting_in_init(0, 4).set(6, process_state="T")) is None


def test_a_start_is_given_its_time() -> None:
    assert verdict(waiting_in_init(0, 4).set(7, stalled_s=5.0)) is None


def test_once_a_step_is_done_calls_show_more() -> None:
    assert verdict(waiting_in_init(0, 4).set(0, steps_done=1)) is None


def test_ranks_that_cannot_connect_are_cut_off_whichever_rank_gives_up_waiting_for_them() -> None:
    ranks = starting().end(0, code=1, last_words=NO_ANSWER).end(5, code=1, last_words=NOT_CONNECTED)
    found = ranks.found(Unreachable())
    assert (found.kind, list(found.culprits)) == (store.VERDICT_KIND_TRANSPORT, [])
    assert found.message.startswith("node node1 cannot connect to node node0, where all ranks are to meet: torch.")


def test_a_store_that_no_rank_reaches_is_no_link() -> None:
    ranks = starting().end(1, code=1, last_words=NOT_CONNECTED).end(5, code=1, last_words=NOT_CONNECTED)
    assert verdict(ranks) is None


def test_a_rank_that_was_killed_explains_more() -> None:
    assert verdict(starting().end(5, code=1, last_words=NOT_CONNECTED).end(3, signal=9)) is None

"""A node that is gone, and an agent that is gone while its node is there."""

from holdfast_core.detectors.hangs.lost_node import LostNode
from holdfast_core.detectors.hangs.root_ranks import HungCollective
from holdfast_core.texts.render import write
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import LATE_S, NOW, Ranks

LOST_PEER = "Traceback\nRuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:8070"


def missing_node() -> Ranks:
    ranks = Ranks(8)
    ranks.missing = {"node1"}
    return ranks


def verdict(ranks: Ranks) -> store.Verdict | None:
    return ranks.verdict(LostNode())


def test_a_node_that_others_wait_for_is_lost() -> None:
    ranks = missing_node().group("0", {number: 11 if number < 4 else 10 for number in range(8)}, 10)
    (finding,) = LostNode().see_tick(ranks.view()).findings
    assert (finding.verdict.node, list(finding.verdict.culprits)) == ("node1", [4, 5, 6, 7])
    assert {edge.awaited for edge in finding.verdict.waits} <= {4, 5, 6, 7}
    assert finding.last_progress_unix_s == NOW - 8.0


def test_a_node_whose_ranks_tear_their_connections_is_lost_immediately() -> None:
    ranks = missing_node().set(*range(4), stalled_s=0.0).end(2, code=1, last_words=LOST_PEER)
    assert verdict(ranks.set(2, silent_s=60.0)) is not None


def test_an_agent_that_is_gone_alone_is_no_lost_node() -> None:
    assert verdict(missing_node().set(*range(4), stalled_s=0.2)) is None


def test_a_failure_of_a_rank_itself_is_no_sign_of_a_lost_node() -> None:
    ranks = missing_node().set(*range(4), stalled_s=0.2)
    assert verdict(ranks.end(2, code=1, last_words="Traceback\nValueError: bad sample")) is None


def test_ranks_that_all_stand_still_without_a_known_reason_have_lost_the_node() -> None:
    assert verdict(missing_node()) is not None


def test_a_rank_that_is_seen_to_be_stopped_explains_a_hang_better_than_a_missing_agent() -> None:
    ranks = missing_node().group("0", {number: 10 if number == 1 else 11 for number in range(8)}, 10)
    assert verdict(ranks.set(1, process_state="T")) is None
    assert ranks.verdict(HungCollective()) is not None


def test_ranks_that_trained_on_without_their_agent_are_out_of_sight_and_not_surely_the_cause() -> None:
    ranks = missing_node()
    for number in range(4):
        ranks[number].progress.step += 2
    found = ranks.found(LostNode())
    assert not found.lost_node.trained_on  # the others stood still before the lease ran out
    ranks.missing_since_unix_s = NOW - LATE_S - 1.0
    found = ranks.found(LostNode())
    assert (found.lost_node.trained_on, found.confidence_ratio) == (True, 0.5)
    write(found)
    assert found.message.startswith("the run stands still, and nothing is known of ranks 4, 5, 6, 7: the agent of node")
    for number in range(4):
        ranks[number].progress.step -= 1  # they may have been one step ahead of the last report
    assert not ranks.found(LostNode()).lost_node.trained_on


def test_a_node_that_is_heard_of_is_not_lost() -> None:
    assert verdict(Ranks(8)) is None


def test_a_report_ends_when_the_ranks_train_on_after_all() -> None:
    ranks = missing_node()
    named = LostNode().see_tick(ranks.view())
    assert (len(named.findings), named.endings) == (1, ())
    ranks.missing_since_unix_s = NOW - LATE_S - 1.0
    again = named.next.see_tick(ranks.view())
    assert (len(again.findings), again.endings) == (1, ())  # nothing has moved
    for number in range(4):
        ranks[number].progress.step += 2
        ranks[number].stalled_s = 0.2
    moved = again.next.see_tick(ranks.view())
    assert moved.findings == ()
    [ending] = moved.endings
    assert ending.what == ("the ranks of node node1 train on: steps that need them were done after its agent had gone")
    assert ending.culprits == (4, 5, 6, 7)
    assert moved.next.see_tick(ranks.view()).endings == ()  # said once
    assert again.next.restarted(5).see_tick(ranks.view()).endings == ()


def test_an_agent_that_is_back_says_nothing_about_its_ranks() -> None:
    ranks = missing_node()
    named = LostNode().see_tick(ranks.view()).next
    ranks.missing = set()
    assert named.see_tick(ranks.view()).endings == ()
    ranks.end(2, code=1, last_words=LOST_PEER)
    for number in (0, 1, 3):
        ranks[number].progress.step += 2
        ranks[number].stalled_s = 0.0
    assert named.see_tick(ranks.view()).endings == ()


def test_a_report_ends_when_a_rank_of_another_node_is_seen_to_hold_the_run_up() -> None:
    ranks = missing_node()
    named = LostNode().see_tick(ranks.view())
    assert len(named.findings) == 1
    ranks.set(1, process_state="T").group("0", {number: 10 if number == 1 else 11 for number in range(8)}, 10)
    seen = named.next.see_tick(ranks.view())
    assert seen.findings == ()
    [ending] = seen.endings
    assert ending.what == "rank 1 of node node0 holds the run up, and not node node1"
    assert (ending.kind, ending.culprits) == (store.VERDICT_KIND_LOST_NODE, (4, 5, 6, 7))
    assert seen.next.see_tick(ranks.view()).endings == ()  # said once


def test_a_report_of_a_node_that_tore_its_connections_stays_whatever_else_hangs() -> None:
    ranks = missing_node().end(2, code=1, last_words=LOST_PEER)
    named = LostNode().see_tick(ranks.view())
    assert len(named.findings) == 1
    ranks.set(1, process_state="T")
    assert named.next.see_tick(ranks.view()).endings == ()

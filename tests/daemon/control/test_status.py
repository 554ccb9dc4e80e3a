from dataclasses import replace
from typing import Any

import pytest

from holdfast_core.model import Replication, StopRequest
from holdfast_daemon.control.status import status_of
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import OWN_TIME_SOURCE_HOST, OWN_TIME_SOURCE_NONE
from holdfast_proto.v1.control_pb2 import RANK_SORT_RANK, GetStatusRequest, RunStatus
from holdfast_proto.v1.store_pb2 import LIFE_EXITED, LIFE_RUNNING, RankExit
from holdfast_proto.vocabulary import TIME_USES
from tests.support.core_world import World


def trained(steps: int = 3, *, nodes: int = 1, **pace: Any) -> World:
    """Return a run of two ranks a node that has done some steps."""
    world = World(nodes=nodes, ranks_per_node=2)
    world.until("starting")
    world.train(steps, **pace)
    return world


def status(world: World) -> RunStatus:
    return status_of(world.state, world.now, store_up=True)


def test_the_uses_of_time_sum_to_the_wall_time_and_the_end_stops_both() -> None:
    world = World(nodes=1, ranks_per_node=2, created_unix_s=999_990.0)
    world.until("starting")
    world.train(3, step_s=0.5, tick_s=0.5)
    seen = status(world)
    assert tuple(sorted(seen.time_use_s)) == tuple(sorted(TIME_USES))
    assert (seen.time_use_s["productive"], seen.wall_s) == pytest.approx((1.5, world.now - 999_990.0))
    world.tick(StopRequest())
    ended_s = status(world).wall_s
    world.stand(5.0)
    assert status(world).wall_s == ended_s == pytest.approx(sum(status(world).time_use_s.values()))


def test_a_start_from_the_seed_has_resumed_nothing() -> None:
    assert not status(trained()).HasField("resumed_step")


def test_a_restart_shows_the_step_after_which_it_continued() -> None:
    world = trained()
    world.until("running")
    world.end(0, signal=9)
    world.until("gathering")
    world.until("starting")
    assert status(world).resumed_step == world.state.record.resumed_step > 0


def test_a_step_that_a_restart_has_undone_is_not_the_newest_until_it_is_repeated() -> None:
    world = trained()
    world.train(5, snapshot=False)
    lost = status(world).newest_step
    world.end(0, signal=9)
    world.until("gathering")
    assert status(world).newest_step == lost
    world.until("starting")
    first = world.state.record.resumed_step
    assert first < lost == world.state.record.newest_step
    assert status(world).newest_step == first
    shown: list[int] = []
    while not shown or shown[-1] <= lost:
        world.train(1)
        shown.append(status(world).newest_step)
    assert shown == sorted(shown)
    assert shown[0] in (first, first + 1)
    assert shown[-1] == world.state.record.newest_step == lost + 1


def test_each_rank_has_its_memory_its_limit_and_the_way_in_which_its_own_time_is_measured() -> None:
    world = trained(0)
    world.rank(1).memory.allocated_bytes, world.rank(1).memory.limit_bytes = 3 << 30, 8 << 30
    for number, source in enumerate((OWN_TIME_SOURCE_NONE, OWN_TIME_SOURCE_HOST)):
        world.rank(number).own_time_source = source
    world.rank(0).own_time_reason = "it sends messages"
    world.train(1)
    views = status(world).ranks
    assert [(view.memory_bytes, view.memory_limit_bytes) for view in views] == [(0, 0), (3 << 30, 8 << 30)]
    assert [(view.own_time_source, view.own_time_reason) for view in views] == [
        (OWN_TIME_SOURCE_NONE, "it sends messages"),
        (OWN_TIME_SOURCE_HOST, ""),
    ]


def ended(world: World, number: int, how: RankExit) -> None:
    """Let the daemon know how a rank has ended, in the phase in which the run is."""
    for node in world.state.members.values():
        for rank in node.ranks:
            if rank.rank == number:
                rank.life = LIFE_EXITED
                rank.exit.CopyFrom(how)


def shown_dead(world: World) -> list[int]:
    return [view.rank for view in status(world).ranks if view.HasField("exit")]


def test_only_the_rank_that_died_is_shown_dead_while_the_others_are_stopped_for_the_restart() -> None:
    world = trained(nodes=2)
    world.until("running")
    world.end(0, signal=9)
    world.until("gathering")
    assert shown_dead(world) == [0]
    world.until("stopping")
    ended(world, 1, RankExit(signal=9))
    ended(world, 2, RankExit(signal=15))
    assert shown_dead(world) == [0]
    ended(world, 3, RankExit(code=1))
    assert shown_dead(world) == [0, 3]


def test_a_hung_rank_is_not_shown_dead_because_the_restart_has_killed_it() -> None:
    world = trained(nodes=2)
    world.until("running")
    world.hang(1)
    world.until("stopping")
    ended(world, 1, RankExit(signal=9))
    assert shown_dead(world) == []


def test_the_end_of_the_loop_and_the_time_left_are_known_once_a_rank_has_told_it() -> None:
    world = trained(5, step_s=0.5, tick_s=0.5)
    assert not status(world).HasField("planned_steps")
    assert not status(world).HasField("time_left_s")
    world.rank(1).planned_steps = 500
    world.train(5, step_s=0.5, tick_s=0.5)
    seen = status(world)
    assert seen.planned_steps == 500
    assert seen.time_left_s == pytest.approx(0.5 * (499 - seen.newest_step), rel=0.2)


def test_the_settings_say_what_holdfast_may_do_to_the_run() -> None:
    world = World(nodes=1, ranks_per_node=2)
    seen = status(world)
    spec = world.state.spec
    assert (seen.settings.mode, seen.settings.ranks_per_node) == (spec.mode, 2)
    assert seen.settings.injection_allowed == spec.injection_allowed
    assert seen.settings.checkpoint_directory == spec.checkpoint_directory


def test_terminals_learn_which_incident_is_urgent_and_that_a_bad_loss_is_acknowledged() -> None:
    world = trained()
    world.state.record.loss_counts.nonfinite_since = 3
    noted = store.Incident(id="0001-non-finite", state=store.INCIDENT_STATE_NOTED, loss_tier=store.LOSS_TIER_NON_FINITE)
    noted.verdict.step = 3
    world.state = replace(world.state, incidents={noted.id: noted})
    world.now += 3600.0
    assert (status(world).urgent_incident.id, status(world).loss_is_acknowledged) == (noted.id, False)
    noted.acknowledged_unix_s = world.now
    assert (status(world).HasField("urgent_incident"), status(world).loss_is_acknowledged) == (False, True)


def test_of_many_ranks_the_oddest_are_listed_and_the_others_counted() -> None:
    world = trained(nodes=4)
    world.rank(2).memory.allocated_bytes = 7
    world.rank(3).life = store.LIFE_STARTING
    world.rank(5).process_state = "T"
    world.rank(6).exit.signal, world.rank(6).life = 9, LIFE_EXITED
    world.tick()
    seen = status_of(world.state, world.now, store_up=True, request=GetStatusRequest(most_ranks=2))
    assert [(rank.rank, rank.node) for rank in seen.ranks] == [(6, "node3"), (5, "node2")]
    assert [(group.count, group.like.life) for group in seen.other_ranks] == [
        (5, LIFE_RUNNING),
        (1, store.LIFE_STARTING),
    ]
    assert dict(seen.rank_counts) == {"exited": 1, "culprit": 1, "starting": 1, "running": 5}
    assert (seen.matching_ranks, seen.odd_ranks) == (3, 3)
    newest = max(rank.step for rank in status(world).ranks)
    assert (seen.other_ranks[0].like.step, seen.other_ranks[0].like.memory_bytes) == (newest, 7)


def test_culprits_are_the_first_to_be_listed() -> None:
    world = trained(nodes=2)
    world.until("running")
    world.end(3, signal=9)
    world.until("gathering")
    world.rank(0).life = LIFE_EXITED
    world.tick()
    seen = status_of(world.state, world.now, store_up=True, request=GetStatusRequest(most_ranks=1))
    assert [rank.rank for rank in seen.ranks] == [3]


@pytest.mark.parametrize("most_ranks", [0, 4, 5])
def test_few_ranks_are_all_listed_by_number(most_ranks: int) -> None:
    world = trained(nodes=2)
    seen = status_of(world.state, world.now, store_up=True, request=GetStatusRequest(most_ranks=most_ranks))
    assert [rank.rank for rank in seen.ranks] == [0, 1, 2, 3]
    assert not seen.other_ranks


def test_ranks_that_have_ended_alike_are_counted_together() -> None:
    world = trained(nodes=4)
    for number in range(8):
        exited, step = world.rank(number), number
        exited.life, exited.exit.code, exited.exit.step = LIFE_EXITED, 1, step
    world.tick()
    seen = status_of(world.state, world.now, store_up=True, request=GetStatusRequest(most_ranks=1))
    [group] = seen.other_ranks
    assert (group.count, group.like.exit) == (7, RankExit(code=1))


def test_ranks_that_wait_for_a_named_culprit_are_counted_and_not_listed() -> None:
    world = trained(nodes=4)
    world.until("running")
    world.hang(5)
    world.until("gathering")
    seen = status_of(world.state, world.now, store_up=True, request=GetStatusRequest(most_ranks=4))
    assert [rank.rank for rank in seen.ranks] == [5]
    assert (seen.odd_ranks, sum(group.count for group in seen.other_ranks)) == (1, 7)
    assert dict(seen.rank_counts) == {"culprit": 1, "waiting": 7}


def test_of_a_healthy_run_of_many_ranks_none_is_listed_unless_a_page_is_asked_for() -> None:
    world = trained(nodes=4)
    seen = status_of(world.state, world.now, store_up=True, request=GetStatusRequest(most_ranks=3))
    assert (list(seen.ranks), seen.other_ranks[0].count) == ([], 8)
    request = GetStatusRequest(most_ranks=3, skip_ranks=6, sort=RANK_SORT_RANK)
    seen = status_of(world.state, world.now, store_up=True, request=request)
    assert ([rank.rank for rank in seen.ranks], seen.matching_ranks, seen.other_ranks[0].count) == ([6, 7], 8, 6)


def test_a_search_lists_the_ranks_of_a_node_and_counts_those_of_the_whole_run() -> None:
    world = trained(nodes=4)
    seen = status_of(world.state, world.now, store_up=True, request=GetStatusRequest(most_ranks=1, search="node2"))
    assert ([rank.rank for rank in seen.ranks], seen.matching_ranks) == ([4], 2)
    assert dict(seen.rank_counts) == {"running": 8}


def test_replica_snapshots_are_shown_while_the_generation_that_has_made_them_runs() -> None:
    world = trained()
    made = Replication(step=9, generation=1, began_unix_s=0.0, sent_unix_s=0.0, looked_unix_s=0.0, complete_step=4)
    seen = {
        generation: status_of(
            replace(world.state, replication=replace(made, generation=generation)), world.now, store_up=True
        )
        for generation in (0, 1)
    }
    assert seen[1].newest_replica == 4
    assert not seen[0].HasField("newest_replica")
    assert not status(world).HasField("newest_replica")

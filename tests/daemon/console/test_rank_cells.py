"""Values of many ranks: few bytes in a healthy run, the odd ranks first, and no change is lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast_core.deadlines import Deadlines
from holdfast_core.model import CoreState
from holdfast_daemon.clock import Clock
from holdfast_daemon.console import live_feeds
from holdfast_daemon.console.ranks.rank_cells import COLOURS, MOST_CELLS, MOST_CHANGES, MOST_ODD, RankCells
from holdfast_daemon.console.ranks.rank_table import RankReader
from holdfast_daemon.console.watched import WatchedDaemon
from holdfast_proto.v1 import store_pb2 as store
from tests.support.simulated_run import SimulatedRun

pytestmark = pytest.mark.usefixtures("each_state_is_looked_at")


def state_of(run: SimulatedRun) -> CoreState:
    assert run.state is not None
    return run.state


def changed_node(state: CoreState, change: Callable[[store.NodeState], object]) -> CoreState:
    """Return the state with another report of its only node."""
    node = store.NodeState()
    node.CopyFrom(state.nodes["node0000"])
    change(node)
    return replace(state, nodes={"node0000": node})


def fall_behind(state: CoreState, steps: int) -> CoreState:
    """Return the state in which rank 5 is N steps behind."""
    step = state.nodes["node0000"].ranks[5].progress.step - steps
    return changed_node(state, lambda node: setattr(node.ranks[5].progress, "step", step))


@pytest.mark.parametrize("colour", COLOURS)
def test_the_changes_give_the_newest_values_after_a_while(colour: str) -> None:
    run = SimulatedRun(ranks=1200)
    cells = RankCells(RankReader(), colour)
    run.advance(3.0)
    values = cells.frame(state_of(run))["values"]
    for at in range(10):
        if at == 4:
            run.hang(700)
        run.advance(0.35)
        event = cells.change(state_of(run))
        if event is not None:
            change = event[1].get("values", {"at": [], "to": []})
            assert colour == "health" or len(change["at"]) <= MOST_CHANGES
            for rank, value in zip(change["at"], change["to"], strict=True):
                values[rank] = value
    for _ in range(4):  # the run stands still: what was put off follows
        event = cells.change(state_of(run))
        for rank, value in zip(*(event[1]["values"].values() if event else ([], [])), strict=True):
            values[rank] = value
    assert values == RankCells(RankReader(), colour).frame(state_of(run))["values"] or colour == "step_time"
    assert values == cells.last_frame(state_of(run))["values"]


def test_health_is_never_put_off() -> None:
    run = SimulatedRun(ranks=2000)
    cells = RankCells(RankReader(), "health")
    cells.frame(state_of(run))
    run.hang(7)
    run.advance(5.0)
    event = cells.change(state_of(run))
    assert event is not None
    assert (len(event[1]["values"]["at"]), event[1]["odd"]) == (MOST_CELLS, [7])


def test_ranks_whose_values_change_all_the_time_take_turns() -> None:
    run = SimulatedRun(ranks=3 * MOST_CHANGES)
    cells = RankCells(RankReader(), "phase")
    cells.frame(state_of(run))
    every = range(3 * MOST_CHANGES)
    sent = [cells._chosen(every, [7]) for _ in range(4)]
    assert {rank for some in sent for rank in some} == set(every)
    assert all(7 in some and len(some) == MOST_CHANGES for some in sent)


def test_a_healthy_run_has_no_odd_ranks_and_its_health_sends_nothing() -> None:
    run = SimulatedRun(ranks=64)
    cells = RankCells(RankReader(), "health")
    assert cells.frame(state_of(run))["odd"] == []
    for _ in range(20):
        run.advance(0.3)
        assert cells.change(state_of(run)) is None


def test_culprits_and_then_the_oddest_ranks_come_first_without_those_that_wait_for_them() -> None:
    run = SimulatedRun(ranks=16)
    run.advance(1.0)
    run.hang(3)
    run.kill(9)
    run.advance(5.0)
    run.judge(12)
    frame = RankCells(RankReader(), "health").frame(state_of(run))
    assert (frame["odd"], frame["odd_count"]) == ([12, 9, 3], 3)
    assert frame["totals"] == {"exited": 1, "culprit": 1, "stopped": 1, "waiting": 13}


@pytest.mark.parametrize(
    ("step_s", "steps", "is_behind"), [(0.04, 2, False), (0.04, 60, True), (1.5, 1, False), (1.5, 2, True)]
)
def test_a_rank_is_behind_only_if_it_is_by_two_steps_and_two_seconds(
    step_s: float, steps: int, is_behind: bool
) -> None:
    run = SimulatedRun(ranks=8, step_s=step_s)
    run.advance(100.0 * step_s)
    cells = RankCells(RankReader(), "health")
    assert cells.frame(state_of(run))["behind"] == []
    event = cells.change(fall_behind(state_of(run), steps))
    change = {"odd": [5], "behind": [5], "odd_count": 1, "totals": {"behind": 1, "running": 7}}
    assert event == (("change", change) if is_behind else None)


def test_no_rank_is_behind_before_the_usual_time_of_a_step_is_known() -> None:
    run = SimulatedRun(ranks=8)
    run.advance(5.0)
    fresh = replace(fall_behind(state_of(run), 4), deadlines=Deadlines(floor_s=1.0))
    assert RankCells(RankReader(), "health").frame(fresh)["odd"] == []


def test_a_further_page_takes_no_change_from_the_first(tmp_path: Path) -> None:
    run = SimulatedRun(ranks=8)
    named = SimpleNamespace(runs={"r": run}, clock=Clock(), options=SimpleNamespace(directory=tmp_path))
    watched = cast(WatchedDaemon, named)
    reader = RankReader()
    ranks = live_feeds._RanksFeed(watched, "r", reader, RankCells(reader, "health"))
    frames = live_feeds._RunFeed(watched, "r", RankReader())
    ((_, first),), ((_, shown),) = ranks._first(True), frames._first(True)
    run.hang(3)
    run.advance(5.0)
    assert ranks._first(False) == [("frame", first)]
    assert frames._first(False) == [("frame", shown)]
    ((_, change),) = ranks._changes()
    assert change["values"]["at"] == list(range(8))
    name, change = next(iter(frames._changes()))
    assert (name, change["rank_counts"]["stalled"]) == ("change", 8)


def test_a_page_has_the_next_ranks_and_knows_the_odd_ones_of_all_pages() -> None:
    run = SimulatedRun(ranks=2000)
    run.kill(7)
    run.advance(5.0)
    frame = RankCells(RankReader(), "health", skip=MOST_CELLS).frame(state_of(run))
    assert (frame["count"], frame["ranks"][0], frame["ranks"][-1], frame["matching"]) == (976, 1024, 1999, 2000)
    assert frame["odd_elsewhere"] == {"7": {"node": "node0000", "what": "exited"}}
    assert frame["nodes"][0] == f"node{1024 // 8:04}" and frame["node_of"][8] == 1


def test_a_search_shows_the_ranks_that_match_and_follows_them() -> None:
    run = SimulatedRun(ranks=64)
    cells = RankCells(RankReader(), "health", search="exited")
    assert cells.frame(state_of(run))["ranks"] == []
    run.kill(9)
    run.advance(1.0)
    event = cells.change(state_of(run))
    assert event is not None
    assert (event[0], event[1]["ranks"], event[1]["matching"], event[1]["nodes"]) == ("frame", [9], 1, ["node0001"])


def test_of_many_odd_ranks_the_first_are_listed_and_all_are_counted() -> None:
    run = SimulatedRun(ranks=200)
    for rank in range(2 * MOST_ODD):
        run.kill(rank)
    run.advance(1.0)
    frame = RankCells(RankReader(), "health").frame(state_of(run))
    assert (len(frame["odd"]), frame["odd_count"]) == (MOST_ODD, 2 * MOST_ODD)


def test_another_world_gets_a_new_frame() -> None:
    run, larger = SimulatedRun(ranks=8), SimulatedRun(ranks=16)
    cells = RankCells(RankReader(), "health")
    cells.frame(state_of(run))
    event = cells.change(state_of(larger))
    assert event is not None
    assert (event[0], event[1]["count"]) == ("frame", 16)


def test_places_are_unknown_until_all_ranks_have_named_theirs() -> None:
    state = changed_node(state_of(SimulatedRun(ranks=8)), lambda node: node.ranks[3].coordinates.clear())
    frame = RankCells(RankReader(), "health").frame(state)
    assert (frame["axes"], frame["places"]) == ([], None)


def test_a_rank_of_which_nothing_is_known_has_no_value() -> None:
    state = changed_node(state_of(SimulatedRun(ranks=8)), lambda node: node.ranks.pop(5))
    frame = RankCells(RankReader(), "phase").frame(state)
    assert [rank for rank, value in enumerate(frame["values"]) if value is None] == [5]
    assert frame["node_of"][5] is None

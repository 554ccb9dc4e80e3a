"""All ranks of a generation: what is summed up of each node, and what is not found out again."""

from holdfast_core.diagnosis.hosts.wait_graph import WaitAnalysis
from holdfast_core.world import World, parts_of, world_of
from holdfast_proto.v1 import store_pb2 as store
from tests.support.views import Ranks


def rank(number: int, step: int = 7, stalled_s: float = 0.0, **fields: object) -> store.RankState:
    state = store.RankState(rank=number, life=store.LIFE_RUNNING, steps_done=3, stalled_s=stalled_s, **fields)  # type: ignore[arg-type]
    state.progress.step = step
    state.progress.groups.add(group="0", member_runs=[0, 1, 4], enqueued=step, completed=step)
    return state


def ended(number: int, step: int) -> store.RankState:
    return store.RankState(rank=number, life=store.LIFE_EXITED, steps_done=3, exit=store.RankExit(step=step, code=1))


def test_a_node_is_read_again_only_when_its_state_is_new() -> None:
    nodes = {name: store.NodeState(node=name, ranks=[rank(number)]) for number, name in enumerate("ab")}
    first = parts_of(nodes, {})
    nodes["b"] = store.NodeState(node="b", ranks=[rank(1, step=8)])
    second = parts_of(nodes, first)
    assert second["a"] is first["a"]
    assert second["b"].least_step == 8


def test_parts_sum_up_to_the_world() -> None:
    nodes = {
        "a": store.NodeState(ranks=[rank(0, stalled_s=5.0), rank(1, left_training=True)]),
        "b": store.NodeState(ranks=[ended(2, step=4), rank(3, process_state="T")]),
    }
    nodes["b"].ranks[1].steps_done = 0
    world = World(parts_of(nodes, {}).values())
    assert list(world) == [0, 1, 2, 3]
    assert (list(world.ended), list(world.left), list(world.named)) == ([2], [1], [])
    assert (world.alive, world.stopped, world.untrained) == (3, 1, 1)
    assert (world.least_step, world.longest_start_s) == (4, 0.0)
    assert [each.rank for each in world.stalled_for(1.0)] == [0]


def test_an_empty_world_has_nothing() -> None:
    world = World([])
    assert (world.least_step, world.alive, world.longest_start_s, list(world.stalled_for(0.0))) == (-1, 0, 0.0, [])


def test_who_has_waited_longest_is_looked_at_anew_when_the_ranks_say_the_same_and_stand_still_for_other_times() -> None:
    def awaited_in(stalls_s: tuple[float, float]) -> str:
        ranks = Ranks(4).group("A", {0: 7, 2: 6}, completed=6).group("B", {1: 9, 2: 8}, completed=8)
        for number, stalled_s in enumerate(stalls_s):
            ranks.set(number, stalled_s=stalled_s)
        return ranks.view().wait_analysis.group

    assert [awaited_in(stalls_s) for stalls_s in ((30.0, 5.0), (5.0, 30.0), (33.0, 8.0))] == ["A", "B", "A"]


def test_who_waits_is_looked_at_once_if_standstills_differ_by_the_age_of_reports_alone() -> None:
    def analysis(stalls_s: tuple[float, float]) -> WaitAnalysis:
        ranks = Ranks(2).group("once", {0: 7, 1: 6}, completed=6)
        for number, stalled_s in enumerate(stalls_s):
            ranks.set(number, stalled_s=stalled_s)
        return ranks.view().wait_analysis

    first = analysis((30.0, 28.1))
    assert analysis((30.5, 28.0)) is first
    assert analysis((31.0, 27.0)) is not first


def test_what_follows_from_calls_is_found_once_until_the_ranks_say_something_else() -> None:
    asked: list[int] = []

    def ask(step: int, stalled_s: float) -> int:
        def find() -> int:
            asked.append(step)
            return len(asked)

        return world_of([rank(number, step, stalled_s) for number in range(4)]).remembered("test_world", find)

    assert [ask(7, 1.0), ask(7, 2.0), ask(8, 0.0), ask(7, 9.0)] == [1, 1, 2, 1]
    assert asked == [7, 8]

"""What the ranks were seen to do."""

from holdfast_core.accounting.phase_watch import (
    MOST_NODES_SEEN,
    MOST_STRETCHES,
    MOST_UNSEEN_S,
    Stretch,
    extended,
    seen_between,
    seen_use,
)
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store


def node(phase: "common.Phase", life: "store.Life" = store.LIFE_RUNNING, generation: int = 2) -> store.NodeState:
    rank = store.RankState(life=life, progress=common.Progress(phase=phase))
    return store.NodeState(generation=generation, ranks=[rank])


def use_of(*nodes: store.NodeState) -> str | None:
    named = {f"n{number}": one for number, one in enumerate(nodes)}
    return seen_use(named, [*named], 2)


def test_what_holds_the_others_up_wins_and_what_shows_nothing_is_left_out() -> None:
    trains, evaluates = node(common.PHASE_OPTIMIZER), node(common.PHASE_EVAL)
    assert use_of(trains, evaluates) == "evaluation"
    assert use_of(evaluates, node(common.PHASE_CHECKPOINT)) == "checkpoint_stall"
    assert use_of(trains, node(common.PHASE_IDLE)) == "productive"
    assert use_of(node(common.PHASE_OPTIMIZER, store.LIFE_EXITED)) == "idle"
    assert use_of(node(common.PHASE_INIT), store.NodeState(generation=2)) is None
    assert use_of(node(common.PHASE_EVAL, generation=1)) is None
    assert use_of() is None


def test_a_large_run_is_seen_by_a_few_nodes_and_the_first_is_one_of_them() -> None:
    looks = 0

    class Nodes(dict[str, store.NodeState]):
        def get(self, name: str, default: object = None) -> store.NodeState:
            nonlocal looks
            looks += 1
            return node(common.PHASE_EVAL if name == "0" else common.PHASE_OPTIMIZER)

    assert seen_use(Nodes(), [str(number) for number in range(1000)], 2) == "evaluation"
    assert 16 <= looks <= MOST_NODES_SEEN


def test_a_look_holds_until_the_next_one_unless_that_comes_late() -> None:
    watched = extended((), "productive", 100.0)
    watched = extended(watched, "productive", 101.0)
    watched = extended(watched, "evaluation", 102.0)
    watched = extended(watched, None, 103.0)
    watched = extended(watched, "evaluation", 104.0)
    assert watched == (Stretch("productive", 100.0, 102.0), Stretch("evaluation", 102.0, 104.0))
    late = 104.0 + MOST_UNSEEN_S + 1.0
    watched = extended(watched, "evaluation", late)
    watched = extended(watched, "idle", late + 1.0)
    assert seen_between(watched, 101.5, late + 0.5) == {"productive": 0.5, "evaluation": 2.5}


def test_a_long_time_without_steps_needs_no_more_and_more_memory() -> None:
    watched: tuple[Stretch, ...] = ()
    for number in range(3 * MOST_STRETCHES):
        watched = extended(watched, ("productive", "data_wait")[number % 2], 100.0 + number)
    assert len(watched) == MOST_STRETCHES
    assert sum(seen_between(watched, 0.0, 1e9).values()) == 3 * MOST_STRETCHES - 1

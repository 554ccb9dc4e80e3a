"""How a rank is: one judgement for the console, `status`, `top` and the metrics."""

from functools import partial

import pytest

from holdfast_core.reading.rank_health import HEALTH, OK, WAITING, StallRule, health_counts, is_behind
from holdfast_core.world import World, world_of
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import running


@pytest.mark.parametrize(
    ("step_s", "lag", "expected"),
    [(0.05, 2, False), (0.05, 39, False), (0.05, 40, True), (5.0, 1, False), (5.0, 2, True), (None, 2, False)],
)
def test_a_rank_is_behind_by_two_steps_and_by_two_seconds_of_them(
    step_s: float | None, lag: int, expected: bool
) -> None:
    assert is_behind(OK, 100 - lag, 100, step_s) is expected
    assert not is_behind(WAITING, 100 - lag, 100, step_s)


def test_messages_spell_healths_as_pages_do() -> None:
    names = [name.removeprefix("RANK_HEALTH_").lower() for name in control.RankHealth.DESCRIPTOR.values_by_name]
    assert names == ["unspecified", *HEALTH]


@pytest.mark.parametrize("is_pausing", [True, False])
def test_ranks_are_counted_from_their_nodes_as_they_are_one_by_one(is_pausing: bool) -> None:
    rule = StallRule.of(running().state)
    phase = common.PHASE_EVAL if is_pausing else common.PHASE_FORWARD_BACKWARD
    train = partial(store.RankState, life=store.LIFE_RUNNING, steps_done=100)
    calm = [
        train(progress=common.Progress(phase=phase)),
        train(process_state="t"),
        train(process_state="T", left_training=True),
        store.RankState(life=store.LIFE_STARTING, process_state="T"),
        store.RankState(life=store.LIFE_EXITED),
    ]
    waiting = common.Progress(groups=[common.GroupProgress(enqueued=2, completed=1)])
    stalled = [train(stalled_s=1000.0), train(stalled_s=1000.0, progress=waiting)]
    worlds = [_numbered(calm), _numbered(stalled)]
    judged = [(rank.life, rank.progress.phase, rule.health_of(rank)) for world in worlds for rank in world.values()]
    counts = rule.counts([part for world in worlds for part in world.parts])
    assert counts == health_counts(judged)
    assert counts == {"starting": 1, "running": 5, "exited": 1, "stalled": 2 if is_pausing else 3}


def _numbered(ranks: list[store.RankState]) -> World:
    for number, rank in enumerate(ranks):
        rank.rank = number
    return world_of(ranks)

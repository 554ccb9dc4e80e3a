"""How a rank is: one judgement for the console, `status`, `top` and the metrics."""

import pytest

from holdfast_daemon.console.ranks.rank_table import RankReader
from holdfast_daemon.control.status import status_of
from holdfast_daemon.core.reading.rank_health import HEALTH, OK, WAITING, is_behind
from holdfast_daemon.metrics_collector import ranks_by_state
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from tests.daemon.core.test_coordinator import running


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


@pytest.mark.parametrize(
    ("phase", "healths"),
    [(common.PHASE_FORWARD_BACKWARD, {"ok", "waiting", "stalled"}), (common.PHASE_EVAL, {"ok", "waiting"})],
)
def test_status_pages_and_metrics_say_the_same_at_each_moment_of_a_hang(
    phase: "common.Phase", healths: set[str]
) -> None:
    world, seen = running(), set()
    world.hang(culprit=1)
    world.rank(1).progress.phase = phase
    for _ in range(60):
        world.tick()
        table = RankReader().table(world.state)
        views = {view.rank: view for view in status_of(world.state, world.now, store_up=True).ranks}
        assert ranks_by_state(world.state) == table.counts
        for number, row in table.rows.items():
            assert control.RankHealth.Name(views[number].health) == f"RANK_HEALTH_{HEALTH[row.health].upper()}"
            seen.add(HEALTH[row.health])
    assert seen == healths

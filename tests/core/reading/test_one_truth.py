"""All views of one moment of a run say the same: the console, `status`, `top` and the metrics."""

from types import SimpleNamespace
from typing import cast

import pytest

from holdfast_cli.views.phrases import phase_text
from holdfast_core.reading.rank_health import HEALTH
from holdfast_daemon.console.pages.run_frame import run_frame
from holdfast_daemon.console.ranks.rank_table import RankReader
from holdfast_daemon.console.watched import WatchedRun
from holdfast_daemon.control.status import status_of
from holdfast_daemon.run_metrics import ranks_by_state
from holdfast_daemon.validation.refused_values import Refusals
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import control_pb2 as control
from tests.core.runs import running
from tests.support.core_world import World


def compare(world: World) -> tuple[str, set[str]]:
    """Compare the views of this moment; return the state of the run and the healths of its ranks."""
    state = world.state
    facts = {"run_name": "r", "state": state, "store_up": True, "leads": True, "refusals": Refusals("r")}
    run = cast(WatchedRun, SimpleNamespace(**facts))
    reader = RankReader()
    frame, table = run_frame(run, reader, world.now), reader.table(state)
    status = status_of(state, world.now, store_up=True)
    assert phase_text(status) == frame["state"]
    assert status.newest_step == frame["step"] == frame["newest_step"]
    left_s = round(status.time_left_s) if status.HasField("time_left_s") else None
    assert left_s == frame["progress"]["left_s"]
    assert status.HasField("tokens_per_s") == (frame["tokens_per_s"] is not None)
    assert ranks_by_state(state) == frame["rank_counts"]
    healths = {view.rank: control.RankHealth.Name(view.health) for view in status.ranks}
    assert healths == {number: f"RANK_HEALTH_{HEALTH[row.health].upper()}" for number, row in table.rows.items()}
    if frame["state"] == "stands still":
        assert (left_s, frame["tokens_per_s"], frame["health"]) == (None, None, "bad")
    return frame["state"], {HEALTH[row.health] for row in table.rows.values()}


@pytest.mark.parametrize(
    ("phase", "healths"),
    [(common.PHASE_FORWARD_BACKWARD, {"ok", "waiting", "stalled"}), (common.PHASE_EVAL, {"ok", "waiting"})],
)
def test_views_say_the_same_at_each_moment_of_a_hang(phase: "common.Phase", healths: set[str]) -> None:
    world, states, seen = running(), set[str](), set[str]()
    world.rank(0).planned_steps = 1000
    compare(world)
    world.hang(culprit=1)
    world.rank(1).progress.phase = phase
    for _ in range(60):
        world.tick()
        state, found = compare(world)
        states.add(state)
        seen |= found
    assert seen == healths
    assert states == ({"running", "stands still"} if phase != common.PHASE_EVAL else {"running"})


def test_views_say_the_same_from_a_death_to_the_next_steps() -> None:
    world, states = running(), set[str]()
    world.end(1, signal=9)
    for _ in range(60):
        world.tick()
        states.add(compare(world)[0])
    world.train(3)
    states.add(compare(world)[0])
    assert {"running", "starting"} <= states

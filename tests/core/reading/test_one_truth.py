"""All views of one moment of a run say the same: the console, `status`, `top` and the metrics."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast_cli.top.incidents.attention_panel import attention
from holdfast_cli.top.run_looks import RunLook
from holdfast_cli.top.summary_pane import numbers_text
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
from holdfast_proto.v1 import store_pb2 as store
from tests.core.runs import running
from tests.support.core_world import World


def run_of(world: World) -> WatchedRun:
    """Return the run as the console watches it."""
    facts = {"run_name": "r", "state": world.state, "store_up": True, "leads": True, "refusals": Refusals("r")}
    return cast(WatchedRun, SimpleNamespace(**facts))


def compare(world: World) -> tuple[str, set[str]]:
    """Compare the views of this moment; return the state of the run and the healths of its ranks."""
    state = world.state
    reader = RankReader()
    frame, table = run_frame(run_of(world), reader, world.now), reader.table(state)
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


def test_views_say_the_same_while_nodes_are_missing() -> None:
    world = running(nodes=3, ranks_per_node=2)
    record = world.state.record
    assert attention(status_of(world.state, world.now, store_up=True)) is None
    del record.nodes[1]
    record.shrunk_incident = "0001-lost-node"
    line = "trains with 2 of 3 nodes (4 of 6 ranks) since incident 0001-lost-node"
    frame, panel = (
        run_frame(run_of(world), RankReader(), world.now),
        attention(status_of(world.state, world.now, store_up=True)),
    )
    assert panel is not None and not panel.is_bad
    assert frame["attention"] == {"what": line, "why": [], "next": panel.next}
    assert (frame["health"], frame["verdict"], panel.what) == ("attention", line, line)
    record.phase = store.RUN_PHASE_FINISHED
    assert status_of(world.state, world.now, store_up=True).nodes_note == ""


def test_what_is_more_urgent_than_missing_nodes_is_shown_next_to_them() -> None:
    world = running(nodes=3, ranks_per_node=2)
    del world.state.record.nodes[1]
    world.state.record.shrunk_incident = "0001-lost-node"
    noted = store.Incident(id="0002-straggler", state=store.INCIDENT_STATE_NOTED, detected_unix_s=world.now)
    world.state = replace(world.state, incidents={noted.id: noted})
    frame, status = run_frame(run_of(world), RankReader(), world.now), status_of(world.state, world.now, store_up=True)
    assert frame["attention"]["incident"] == status.urgent_incident.id == "0002-straggler"
    assert status.nodes_note in frame["notes"]
    assert status.nodes_note in numbers_text(cast(RunLook, SimpleNamespace(status=status, numbers=""))).plain

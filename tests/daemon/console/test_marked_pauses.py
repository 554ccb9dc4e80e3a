"""A healthy evaluation or save is shown as one: badge, cells and the list of odd ranks stay quiet until it is late."""

import re
from dataclasses import replace
from typing import Any

import pytest

from holdfast_daemon.console.ranks import rank_table
from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_CHECKPOINT, PHASE_EVAL
from tests.support.console_server import SimulatedConsole

RUN = "/api/runs/llama-7b"
EVERY = range(8)
BEFORE_S, AFTER_S = 15.0, 25.0
"""Seconds in a marked phase, before and after its deadline of 20 s. Half a deadline of a step is 1 s here."""
MUCH_LATER_S = 180.0
"""Seconds after which the core reports also ranks that work in a marked phase."""

PHASES = pytest.mark.parametrize(
    ("phase", "does"), [(PHASE_EVAL, "evaluates"), (PHASE_CHECKPOINT, "saves a checkpoint of its own")]
)


@pytest.fixture(autouse=True)
def look_at_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_table, "LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(rank_table, "COST_RATIO", 0.0)


def pause(console: SimulatedConsole, ranks: range, phase: Any, seconds: float, movement: str = "cpu") -> None:
    def change() -> None:
        console.run.pausing, console.run.movement = dict.fromkeys(ranks, phase), movement
        console.run.advance(seconds)

    console.on_loop(change)


def shown(console: SimulatedConsole) -> tuple[str, str, list[str], list[int]]:
    """Return the badge, the line of the state, the words of the cells, and the odd ranks."""
    frame, ranks = console.get(RUN), console.get(f"{RUN}/ranks")
    (row,) = console.get("/api/runs")["runs"]
    assert (row["health"], row["state_text"]) == (frame["health"], frame["state_text"])
    cells = [ranks["legend"]["words"][value] for value in ranks["values"]]
    return frame["health"], frame["state_text"], cells, ranks["odd"]


@PHASES
def test_a_marked_pause_of_all_ranks_is_no_alarm(console: SimulatedConsole, phase: Any, does: str) -> None:
    pause(console, EVERY, phase, BEFORE_S)
    assert shown(console) == ("ok", does, ["ok"] * 8, [])
    assert console.get(RUN)["rank_counts"]["stalled"] == 0


@PHASES
def test_ranks_that_wait_for_a_marked_pause_are_no_alarm(console: SimulatedConsole, phase: Any, does: str) -> None:
    pause(console, range(1), phase, BEFORE_S)
    cells = ["ok", *["waiting"] * 7]
    assert shown(console) == ("ok", f"{does} on rank 0 while 7 ranks wait", cells, [])
    assert console.get(RUN)["rank_counts"]["stalled"] == 0


@PHASES
def test_a_first_pause_that_is_longer_than_its_deadline_is_no_alarm_while_ranks_work(
    console: SimulatedConsole, phase: Any, does: str
) -> None:
    pause(console, EVERY, phase, AFTER_S)
    assert shown(console) == ("ok", does, ["ok"] * 8, [])
    pause(console, EVERY, phase, MUCH_LATER_S)
    assert shown(console)[0] == "attention"


@PHASES
def test_ranks_that_are_still_in_a_marked_pause_after_its_deadline_are_stalled(
    console: SimulatedConsole, phase: Any, does: str
) -> None:
    pause(console, EVERY, phase, AFTER_S, movement="")
    text = f"{does}, but no rank has made progress lately"
    assert shown(console) == ("attention", text, ["stalled"] * 8, list(EVERY))


def test_one_rank_that_stalls_in_a_marked_pause_is_the_odd_one(console: SimulatedConsole) -> None:
    pause(console, range(1), PHASE_EVAL, AFTER_S, movement="")
    health, text, cells, odd = shown(console)
    assert (health, text) == ("attention", "no rank has made progress lately")
    assert cells == ["stalled", *["waiting"] * 7]
    assert odd == [0, *range(1, 8)]


def test_a_pause_of_one_rank_hides_no_rank_that_stalls_in_training(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.hang(5))
    pause(console, range(1), PHASE_EVAL, BEFORE_S)
    health, text, cells, odd = shown(console)
    assert (health, cells[0], cells[5], odd) == ("attention", "ok", "stalled", [5])
    assert text == "evaluates on rank 0 while 6 ranks wait, and 1 rank made no progress lately"


def test_the_deadline_of_a_pause_is_learned_from_the_run(console: SimulatedConsole) -> None:
    state = console.run.state
    assert state is not None
    learned = state.deadlines.observe(40.5, {PHASE_EVAL: 40.0})
    console.on_loop(lambda: setattr(console.run, "state", replace(state, deadlines=learned)))
    pause(console, EVERY, PHASE_EVAL, 100.0, movement="")
    assert shown(console)[0] == "ok"
    pause(console, EVERY, PHASE_EVAL, 25.0, movement="")
    assert shown(console)[0] == "attention"


def test_a_stall_in_training_is_shown_after_half_a_deadline(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.hang(5))
    console.on_loop(lambda: console.run.advance(2.0))
    assert shown(console)[0] == "attention"
    console.on_loop(lambda: console.run.judge(5, store.VERDICT_KIND_HUNG_COLLECTIVE))
    assert shown(console)[0] == "bad"


def test_a_run_of_which_no_rank_is_known_yet_is_not_said_to_stand_still(console: SimulatedConsole) -> None:
    state = console.run.state
    assert state is not None
    spec = store.RunSpec()
    spec.CopyFrom(state.spec)
    spec.ranks_per_node = 0
    console.on_loop(lambda: setattr(console.run, "state", replace(state, nodes={}, spec=spec)))
    frame = console.get(RUN)
    assert (frame["health"], frame["state_text"]) == ("unknown", "no rank is heard of")


def test_a_run_whose_ranks_are_all_dead_does_not_train_and_has_no_time_left(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.dead.update(EVERY))
    console.on_loop(lambda: console.run.advance(5.0))
    frame = console.get(RUN)
    assert (frame["health"], frame["state_text"]) == ("bad", "no rank is alive")
    assert frame["progress"]["left_s"] is None


def test_what_was_only_noted_says_when_and_does_not_hide_the_state(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.judge(5, store.VERDICT_KIND_STRAGGLER, state=store.INCIDENT_STATE_NOTED))
    (row,) = console.get("/api/runs")["runs"]
    assert (row["health"], row["state_text"]) == ("attention", "trains")
    assert re.match(r"Noted at \d\d:\d\d:\d\d \S+: ", row["verdict"])
    assert console.get(RUN)["attention"]["what"] == row["verdict"]

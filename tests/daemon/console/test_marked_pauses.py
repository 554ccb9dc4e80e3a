"""A healthy evaluation or save is shown as one: badge, cells and the list of odd ranks stay quiet until it is late."""

import re
from typing import Any

import pytest

from holdfast_proto.v1 import store_pb2 as store
from holdfast_proto.v1.common_pb2 import PHASE_CHECKPOINT, PHASE_EVAL
from tests.daemon.console.conftest import advance, change_state
from tests.daemon.validation.bad_values import changed
from tests.support.console_server import SimulatedConsole

pytestmark = pytest.mark.usefixtures("each_state_is_looked_at")
RUN = "/api/runs/llama-7b"
EVERY = range(8)
BEFORE_S, AFTER_S = 15.0, 25.0
"""Seconds in a marked phase, before and after its deadline of 20 s. Half a deadline of a step is 1 s here."""
MUCH_LATER_S = 180.0
"""Seconds after which the core reports also ranks that work in a marked phase."""

PHASES = pytest.mark.parametrize(
    ("phase", "does"), [(PHASE_EVAL, "evaluates"), (PHASE_CHECKPOINT, "saves a checkpoint of its own")]
)


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
@pytest.mark.parametrize(
    ("ranks", "waits", "cells"),
    [(EVERY, "", ["ok"] * 8), (range(1), " on rank 0 while 7 ranks wait", ["ok", *["waiting"] * 7])],
    ids=["all ranks", "one rank"],
)
def test_a_marked_pause_is_no_alarm(
    console: SimulatedConsole, phase: Any, does: str, *, ranks: range, waits: str, cells: list[str]
) -> None:
    pause(console, ranks, phase, BEFORE_S)
    assert shown(console) == ("ok", does + waits, cells, [])
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
    assert odd == [0], "most ranks wait: none of them differs"


def test_a_pause_of_one_rank_hides_no_rank_that_stalls_in_training(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.hang(5))
    pause(console, range(1), PHASE_EVAL, BEFORE_S)
    health, text, cells, odd = shown(console)
    assert (health, cells[0], cells[5], odd) == ("attention", "ok", "stalled", [5])
    assert text == "evaluates on rank 0 while 6 ranks wait, and 1 rank made no progress lately"


def test_the_deadline_of_a_pause_is_learned_from_the_run(console: SimulatedConsole) -> None:
    assert console.run.state is not None
    change_state(console, deadlines=console.run.state.deadlines.observe(40.5, {PHASE_EVAL: 40.0}))
    pause(console, EVERY, PHASE_EVAL, 100.0, movement="")
    assert shown(console)[0] == "ok"
    pause(console, EVERY, PHASE_EVAL, 25.0, movement="")
    assert shown(console)[0] == "attention"


def test_a_stall_in_training_is_shown_after_half_a_deadline(console: SimulatedConsole) -> None:
    advance(console, 2.0, console.run.hang, 5)
    assert shown(console)[0] == "attention"
    console.on_loop(lambda: console.run.judge(5, store.VERDICT_KIND_HUNG_COLLECTIVE))
    assert shown(console)[0] == "bad"


def test_a_run_of_which_no_rank_is_known_yet_is_not_said_to_stand_still(console: SimulatedConsole) -> None:
    assert console.run.state is not None
    change_state(console, nodes={}, spec=changed(console.run.state.spec, "ranks_per_node", 0))
    frame = console.get(RUN)
    assert (frame["health"], frame["state_text"]) == ("unknown", "no rank is heard of")


def test_a_run_whose_ranks_are_all_dead_does_not_train_and_has_no_time_left(console: SimulatedConsole) -> None:
    advance(console, 5.0, console.run.dead.update, EVERY)
    frame = console.get(RUN)
    assert (frame["health"], frame["state_text"]) == ("bad", "no rank is alive")
    assert frame["progress"]["left_s"] is None


def test_what_was_only_noted_says_when_and_does_not_hide_the_state(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.judge(5, store.VERDICT_KIND_STRAGGLER, state=store.INCIDENT_STATE_NOTED))
    (row,) = console.get("/api/runs")["runs"]
    assert (row["health"], row["state_text"]) == ("attention", "trains")
    assert re.match(r"Noted at \d\d:\d\d:\d\d \S+: ", row["verdict"])
    assert console.get(RUN)["attention"]["what"] == row["verdict"]

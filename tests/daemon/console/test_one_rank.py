"""The page of one rank over HTTP: its health, its own time of a step, and stacks that operators request."""

import json
import urllib.error

import pytest

from holdfast_daemon.console.ranks import own_step_times, taken_stacks
from holdfast_daemon.console.ranks.own_step_times import SingleRankTimes
from holdfast_daemon.console.ranks.taken_stacks import TakenStacks
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store
from tests.daemon.console.conftest import advance, change_state
from tests.support.console_server import SimulatedConsole, keep_evidence

pytestmark = pytest.mark.usefixtures("each_state_is_looked_at")
RUN = "/api/runs/llama-7b"
STACKS = f"{RUN}/actions/stacks"


def take(console: SimulatedConsole, rank: int) -> str:
    with console.request(STACKS, {"rank": rank}) as answer:
        return str(json.loads(answer.read())["done"])


def refused(console: SimulatedConsole, rank: int) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as raised:
        console.request(STACKS, {"rank": rank})
    return raised.value.code, json.loads(raised.value.read())["error"]


def badges(console: SimulatedConsole) -> list[tuple[str, str]]:
    """Return the health of all ranks as their pages have it, after a check that the map agrees."""
    pages = [console.get(f"{RUN}/ranks/{rank}") for rank in range(8)]
    ranks = console.get(f"{RUN}/ranks")
    assert [page["health"] for page in pages] == [ranks["legend"]["words"][value] for value in ranks["values"]]
    return [(page["health"], page["badge"]) for page in pages]


def test_the_badge_of_a_rank_agrees_with_the_map(console: SimulatedConsole) -> None:
    assert badges(console) == [("ok", "ok")] * 8
    advance(console, 5.0, console.run.hang, 3)
    assert badges(console)[2:4] == [("waiting", "attention"), ("stalled", "attention")]
    console.on_loop(lambda: console.run.judge(3))
    advance(console, 0.5, console.run.kill, 4)
    assert badges(console)[3:5] == [("culprit", "bad"), ("exited", "bad")]


def test_long_steps_are_no_stall_on_the_page_of_a_rank(console: SimulatedConsole) -> None:
    assert console.run.state is not None
    slow = console.run.state.deadlines
    for _ in range(20):
        slow = slow.observe(10.0, {})
    change_state(console, deadlines=slow)
    advance(console, 8.0, console.run.hung.add, 3)
    page = console.get(f"{RUN}/ranks/4")
    assert (page["stalled_s"], page["badge"]) == (8.0, "ok")


def test_ranks_that_wait_for_a_marked_save_have_a_quiet_badge(console: SimulatedConsole) -> None:
    advance(console, 15.0, console.run.pausing.update, {0: common.PHASE_CHECKPOINT})
    assert badges(console) == [("ok", "ok"), *[("waiting", "ok")] * 7]


def test_the_own_time_of_a_step_is_a_time_with_its_source(console: SimulatedConsole) -> None:
    page = console.get(f"{RUN}/ranks/3")
    assert page["own_step_s"] == console.get(f"{RUN}/ranks?colour=step_time")["values"][3] == 0.44
    assert page["own_time_source"] == "events"


def test_the_own_time_of_a_rank_is_that_of_the_newest_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_step_times, "MOST_RANKS", 2)
    times = SingleRankTimes()

    def at(steps: int, own_s: float, run: str = "r", generation: int = 1) -> float | None:
        return times.time_s(run, generation, store.RankState(rank=3, device_steps=steps, device_own_s=own_s))

    assert at(100, 50.0) == 0.5
    assert at(110, 65.0) == 1.5
    assert at(4, 8.0, generation=2) == 2.0
    assert at(0, 0.0, run="other") is None
    for name in ("other", "a third"):
        at(1, 1.0, run=name)
    assert len(times._times) == 2


def test_a_stack_that_an_operator_takes_is_on_the_page_of_the_rank(console: SimulatedConsole) -> None:
    assert console.get(f"{RUN}/ranks/5")["stack"]["incident"] == "0001-hung-collective"
    assert take(console, 5) == "the stack of rank 5 is taken"
    page = console.get(f"{RUN}/ranks/5", token=console.viewer)
    assert page["stack"] == {
        "text": 'thread 10005 (active, holds the GIL): "MainThread"\n'
        "    all_reduce (distributed_c10d.py:2501)\n    train (train.py:88)\n"
        '\nthread 90005 (idle): "holdfast-link"\n    run (link.py:40)\n',
        "unix_s": console.run.now,
        "generation": None,
        "incident": "",
        "problem": "",
    }
    assert console.get(f"{RUN}/ranks/6")["stack"]["incident"] == "0001-hung-collective"


def test_the_newest_stack_wins_wherever_it_is_from(console: SimulatedConsole) -> None:
    take(console, 5)
    console.on_loop(lambda: console.run.advance(2.0))
    opened = console.on_loop(lambda: console.run.judge(5))
    keep_evidence(console.directory, console.run, opened.id)
    assert console.get(f"{RUN}/ranks/5")["stack"]["incident"] == opened.id
    console.on_loop(lambda: console.run.advance(2.0))
    take(console, 5)
    assert console.get(f"{RUN}/ranks/5")["stack"]["incident"] == ""


def test_a_stack_of_an_earlier_generation_says_so(console: SimulatedConsole) -> None:
    take(console, 5)
    advance(console, 1.0, console.run.begin_generation)
    assert console.get(f"{RUN}/ranks/5")["stack"]["generation"] == 1


def test_a_stack_that_cannot_be_taken_is_refused_in_one_line(console: SimulatedConsole) -> None:
    console.on_loop(lambda: console.run.untouchable.add(2))
    problem = "py-spy may not look into the process: see docs/live-evidence.md"
    assert refused(console, 2) == (409, f"there is no stack of rank 2: {problem}")
    console.on_loop(lambda: console.run.kill(4))
    assert refused(console, 4) == (409, "rank 4: no such rank is alive: name one of 0")
    console.on_loop(lambda: setattr(console.run, "leads", False))
    assert refused(console, 5) == (409, "another daemon leads the run: use its console")
    assert console.get(f"{RUN}/ranks/5")["stacks_refused"] == "another daemon leads the run: use its console"


def test_few_stacks_are_kept_and_long_ones_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_stacks, "MOST_KEPT", 2)
    monkeypatch.setattr(taken_stacks, "MOST_CHARACTERS", 30)
    stacks = TakenStacks(lambda: 7.0)
    for number in range(3):
        taken = store.StacksTaken(ranks=[store.RankStacks(rank=number, threads=[store.ThreadFrames(name="x" * 99)])])
        assert stacks.keep("r", 1, number, taken) == ""
    assert stacks.newest("r", 0) is None
    newest = stacks.newest("r", 2)
    assert newest is not None
    assert (len(newest.text), newest.unix_s) == (30, 7.0)
    assert stacks.keep("r", 1, 5, taken) == "its node has sent none"
    taken.ranks[0].problem = "rank-00002.stack.txt has no native frames"
    assert stacks.keep("r", 1, 2, taken) == ""
    assert (newest := stacks.newest("r", 2)) is not None
    assert newest.problem == "has no native frames"

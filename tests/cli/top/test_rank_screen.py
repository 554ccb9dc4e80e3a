"""One rank: its log of any generation, its newest stack, and a stack that is taken now."""

from pathlib import Path

from holdfast_proto import run_files
from holdfast_proto.run_files import rank_log
from holdfast_proto.v1.control_pb2 import TakeStacksRequest
from holdfast_proto.v1.store_pb2 import RankStacks, StackFrame, StacksTaken, ThreadFrames
from tests.cli.top.conftest import Watch, watching_local
from tests.cli.top.scenes import CULPRIT, hung
from tests.support.coroutines import until
from tests.support.statuses import healthy, killed, with_incident


def write_log(folder: Path, generation: int, rank: int, text: str) -> None:
    log = rank_log(folder, generation, rank)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)


async def test_the_log_of_a_rank_is_shown_with_its_newest_lines(folder: Path) -> None:
    log = rank_log(folder / "llama", 2, 1)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(300)) + "\x1b[31mred\x1b[0m [b]tail\x1b[2J\n")
    async with watching_local(folder, killed(1)) as top:
        await top.press("enter")
        await until(lambda: top.app.screen.query_one("#rank-log").size.height > 100, "the log is there")
        await top.press("end")
        await top.shows("red [b]tail")
        assert "line 299" in top.screen_text
        await top.press("escape", "down", "enter")
        await top.shows("no log of this rank in generation 2 on this machine")


async def test_an_older_log_that_explains_a_death_is_chosen_by_keys(folder: Path) -> None:
    directory = folder / "llama"
    write_log(directory, 1, 2, "the cause\nan unfinished last wor")
    write_log(directory, 2, 2, "restarted\n")
    write_log(directory, 3, 2, "of an earlier start\n")
    status = with_incident(healthy(), recovered=True)
    status.newest_incident.generation = 1
    async with watching_local(folder, status, size=(80, 50)) as top:
        await top.press("down", "down", "enter")
        await top.shows("restarted")
        await top.shows("logs of generations 2, 1 (an incident names this rank)  g: older  G: newer")
        await top.press("g")
        await top.shows("the cause")
        await top.shows("an unfinished last wor")
        await top.press("g")
        await top.pilot.pause(0.1)
        await top.shows("the cause")
        await top.press("G")
        await top.shows("restarted")
        await top.press("escape", "i", "enter")
        await top.shows("what was done")
        await top.press("r")
        await top.shows("the cause")


async def test_the_newest_stack_of_the_evidence_is_shown_until_one_is_taken(folder: Path) -> None:
    status = hung()
    status.run = status.newest_incident.run = "llama"
    evidence = run_files.incidents(folder / "llama", "llama") / status.newest_incident.id
    evidence.mkdir(parents=True)
    (evidence / run_files.rank_evidence(CULPRIT, "stack.txt")).write_text("Thread 1\n    read (data\x1b[2J.py:7)\n")
    async with watching_local(folder, status, size=(100, 60)) as top:
        top.control.stacks.CopyFrom(
            StacksTaken(
                frames=[StackFrame(function="all_reduce", file="dist.py", line=25)],
                ranks=[RankStacks(rank=CULPRIT, pid=4011, threads=[ThreadFrames(id=4011, name="main", frames=[0])])],
            )
        )
        await top.shows("culprit: no")
        await top.press("enter")
        await top.shows("stack from incident 0001-hung-collective")
        await top.shows("read (data.py:7)")
        await top.press("k")
        await top.shows("all_reduce (dist.py:25)")
        await top.hides("read (data.py:7)")
        assert top.control.requests == [TakeStacksRequest(run="llama", ranks=[CULPRIT])]


async def test_a_stack_that_is_refused_says_why_in_one_line(watch: Watch) -> None:
    async with watch(healthy(), size=(100, 60)) as top:
        top.control.refusal = "run llama: another daemon leads it"
        await top.press("enter", "k")
        await top.shows("no stack could be taken: the daemon refused: run llama: another daemon leads it")


async def test_own_time_and_use_of_the_gpu_are_among_the_facts(watch: Watch) -> None:
    status = healthy()
    for rank in status.ranks:
        rank.own_time_s, rank.own_steps, rank.gpu_use_sum, rank.gpu_use_samples = 50.0, 100, 30.0, 40
    status.ranks[0].own_time_s = 80.0
    async with watch(status, size=(100, 60)) as top:
        await top.press("enter")
        await top.shows("0.8 s (median of all ranks 0.5 s)")
        await top.shows("75% of the time")
        assert "own steps" not in top.screen_text


async def test_a_small_terminal_shows_the_keys_of_a_rank(watch: Watch) -> None:
    async with watch(killed(3)) as top:
        await top.press("enter")
        await until(lambda: "k:stack" in top.screen_text, "the hints are there")
        assert top.screen_text.splitlines()[-1].endswith("end:newest")

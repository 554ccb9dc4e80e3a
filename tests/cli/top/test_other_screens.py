"""Ranks, incidents, questions and the choice of a run; and texts that would steer the terminal."""

import contextlib
from pathlib import Path

import pytest

from holdfast_cli.run_folder.record import RunRecord
from holdfast_cli.top.dialogs import HELP
from holdfast_cli.top.top_app import TopApp
from holdfast_proto.v1.control_pb2 import StopRunRequest, TakeCheckpointRequest
from tests.cli.conftest import run_record
from tests.cli.top.conftest import TopControl, Watch, Watching, opened
from tests.cli.top.scenes import CULPRIT, hung, wide
from tests.support.coroutines import until
from tests.support.statuses import healthy, killed

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/] \u202e\r\nnew [link=http://a]"


async def test_enter_opens_a_rank_with_all_its_facts_and_its_incident(watch: Watch) -> None:
    async with watch(hung()) as top:
        await top.press("enter")
        await top.shows("rank 11  culprit: no progress for 21.4 s")
        for fact in ("dp2 pp0 tp3", "node-001", "4011", "44.0 GiB of 80.0 GiB", "incident 0001-hung-collective"):
            assert fact in top.screen_text
        assert "no log here" in top.screen_text
        status = wide(step=1300)
        top.control.status = status
        await top.shows("rank 11  running")
        await top.press("escape")
        await top.shows("32 ranks: 32 running")


async def test_a_rank_that_died_shows_how(watch: Watch) -> None:
    status = killed(3)
    status.ranks[3].exit.last_words = "Traceback:\n  File x\nValueError: bad [sample]"
    async with watch(status, size=(80, 40)) as top:
        await top.press("enter")
        await top.shows("ValueError: bad [sample]")
        assert "exit: signal" in top.screen_text


async def test_the_story_of_an_incident_has_its_tree_of_waits(watch: Watch) -> None:
    async with watch(hung(), size=(80, 40)) as top:
        await top.press("i")
        await top.shows("incidents of llama-7b: 1")
        await top.press("enter")
        await top.shows("ranks 8, 9, 10 in all_reduce 96 of mesh_tp")
        assert "confidence" in top.screen_text and "gathered evidence of 32 ranks" in top.screen_text
        await top.press("escape", "escape")
        await top.shows("culprit: no")


async def test_without_an_incident_the_list_says_so(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.press("i")
        await top.shows("no incidents")


async def test_the_help_names_every_key(watch: Watch) -> None:
    async with watch(healthy()) as top:
        await top.press("question_mark")
        await top.shows("the run continues")
        for keys, _ in HELP:
            assert keys in top.screen_text
        await top.press("escape")
        await top.shows("42 steps")


@pytest.mark.parametrize(
    ("key", "question", "answer", "request_made"),
    [
        ("c", "", "the daemon will take a checkpoint of step 43", TakeCheckpointRequest()),
        ("s", "It first takes a last checkpoint", "the daemon will end the run", StopRunRequest(grace_s=30.0)),
    ],
)
async def test_a_request_is_asked_for_and_made_once(
    watch: Watch, key: str, question: str, answer: str, request_made: object
) -> None:
    async with watch(healthy()) as top:
        await ask(top, key, "n")
        await ask(top, key, "escape")
        assert top.control.requests == []
        await ask(top, key, "y", question)
        await top.shows(answer)
        assert top.control.requests == [request_made]


async def test_a_refusal_is_shown_in_the_daemons_words(watch: Watch) -> None:
    async with watch(healthy()) as top:
        top.control.refusal = "run llama: the store is [unreachable]: try again"
        await ask(top, "c", "y")
        await top.shows("the daemon refused: run llama: the store is [unreachable]")


async def ask(top: Watching, key: str, answer: str, question: str = "") -> None:
    await top.press(key)
    await top.shows("y: yes")
    assert question in top.screen_text
    await top.press(answer)
    await top.hides("y: yes")


async def test_hostile_texts_neither_steer_the_terminal_nor_are_read_as_markup(watch: Watch) -> None:
    status = hung()
    status.run = f"run{HOSTILE}"
    status.replicas_note = HOSTILE
    for rank in status.ranks:
        rank.node = f"n{HOSTILE}"
    rank = status.ranks[CULPRIT]
    rank.own_time_reason = HOSTILE
    rank.coordinates[HOSTILE] = 1
    verdict = status.newest_incident.verdict
    verdict.message = f"message {HOSTILE}"
    verdict.calls.append(HOSTILE)
    for wait in verdict.waits:
        wait.group = wait.op = HOSTILE
    status.newest_incident.actions.add(what=HOSTILE)
    status.newest_incident.evidence.append(HOSTILE)
    status.urgent_incident.CopyFrom(status.newest_incident)
    async with watch(status, size=(100, 50)) as top:
        await top.shows("message [bold red]x[/]")
        raw = [top.screen_text]
        for keys in (["m"], ["m"], ["m"], ["m", "enter"], ["escape", "i"], ["enter"]):
            await top.press(*keys)
            await top.pilot.pause(0.1)
            raw.append(top.screen_text)
        assert "[bold red]x[/]" in raw[4], "the rank's screen"
        assert "[bold red]x[/]" in raw[6], "the story's tree"
        await top.press("escape", "escape", "c")
        await top.shows("y: yes")
        raw.append(top.screen_text)
    steering = {letter for text in raw for line in text.split("\n") for letter in line if not letter.isprintable()}
    assert steering == set()


async def test_of_several_runs_it_asks_which_the_newest_first(folder: Path) -> None:
    socket = folder / "d.sock"
    records: list[RunRecord] = []
    for name, created in (("old", 1.0), ("new", 2.0)):
        (folder / name).mkdir()
        record = run_record(folder / name, run=name, created_unix_s=created, outcome="finished")
        record.save()
        records.insert(0, record)
        (folder / name / "last-status.pb").write_bytes(wide(step=100 + int(created)).SerializeToString())
    app = TopApp(None, choices=records, directory=folder)
    async with opened(app, (80, 24)) as pilot:
        top = Watching(app, pilot, TopControl(healthy()), socket, contextlib.AsyncExitStack())
        await top.shows("which run?")
        lines = top.screen_text.splitlines()
        assert [name for line in lines for name in ("old ", "new ") if name in line] == ["new ", "old "]
        await top.press("down", "enter")
        await top.shows("101 steps")
        assert "ended: finished" in top.screen_text


async def test_no_choice_ends_it(folder: Path) -> None:
    app = TopApp(None, choices=[], directory=folder)
    async with opened(app, (80, 24)) as pilot:
        await pilot.press("escape")
        await until(lambda: not app.is_running, "it has quit")

"""The program behind `make gpu`: what it runs again, what it writes, and how it ends. Its parts here are one-liners."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.measure import outcome_of
from benchmarks.gpu.outcome import LINE_START, Check, Outcome
from benchmarks.gpu.page import page
from benchmarks.gpu.parts import LONGEST_S, PARTS, Part, part_named
from benchmarks.gpu.record import ROOT, Ran, Record, load
from benchmarks.gpu.run_part import run_part
from benchmarks.gpu.tests_part import outcome_of as outcome_of_tests
from docs.check_prose import complaints

GPU = Machine(("NVIDIA H100 80GB HBM3",), "580.1", {"Python": "3.12.3", "torch": "2.11.0"})
NONE = Machine((), "", {"Python": "3.11", "torch": "2.13"})
PASSED = Outcome("passed", figures={"a dump": "3 us"}, checks=(Check("it holds", True),))
Run = Callable[..., int]


@pytest.fixture
def places(tmp_path: Path) -> program.Places:
    return program.Places(tmp_path / "build", tmp_path / "results.json", tmp_path / "gpu.md")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that were run, in order."""
    names: list[str] = []

    def run(part: Part, _log: Path) -> Outcome:
        names.append(part.name)
        return OUTCOMES.get(part.name, PASSED)

    monkeypatch.setattr(program, "run_part", run)
    OUTCOMES.clear()
    return names


OUTCOMES: dict[str, Outcome] = {}


@pytest.fixture
def start(places: program.Places, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str, machine: Machine = GPU) -> int:
        monkeypatch.setattr(Machine, "here", classmethod(lambda _: machine))
        return program.main(list(arguments), places)

    return run


ALL = [part.name for part in PARTS]


def test_parts_that_have_passed_are_not_run_again(start: Run, ran: list[str]) -> None:
    OUTCOMES["events"] = Outcome("failed", "no")
    assert start() == 1
    assert ran == ALL
    ran.clear()
    OUTCOMES.clear()
    assert start() == 0
    assert ran == ["events"]


def test_one_part_is_run_alone_and_a_fresh_one_again(start: Run, ran: list[str]) -> None:
    assert start("--part", "events") == 0
    assert start("--part", "events") == 0
    assert ran == ["events"]
    start()
    ran.clear()
    start("--part", "events", "--fresh")
    assert ran == ["events"]
    ran.clear()
    start("--fresh")
    assert ran == ALL


def test_no_part_is_started_that_may_not_end_in_time(start: Run, ran: list[str], places: program.Places) -> None:
    shortest_min = min(part.limit_s for part in PARTS) / 60
    assert start("--minutes", str(shortest_min * 0.9)) == program.WRONG_SETTING
    assert ran == []
    assert start("--minutes", "9") in (0, program.PARTS_LEFT)
    assert ran


def test_parts_that_never_fit_are_named_with_the_minutes_that_they_need(
    start: Run, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    long, fitting = (part_named(name) for name in ("training", "recorder"))
    arguments = ("--part", long.name, "--part", fitting.name, "--minutes")
    # A part of three minutes does not fit into three: the command itself takes some of them.
    assert start(*arguments, str(fitting.limit_s / 60)) == program.WRONG_SETTING
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        "never fit into --minutes 3: training (9 minutes), recorder (4 minutes): set --minutes 9 or more, or leave it "
        "out"
    )
    assert start(*arguments, "4") == program.WRONG_SETTING
    assert ran == ["recorder"]
    assert "same command" not in capsys.readouterr().out
    assert start(*arguments, "9") == 0
    assert ran == ["recorder", "training"]


def test_parts_that_fit_the_next_time_are_left_for_the_same_command(
    start: Run, ran: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]

    def run(part: Part, _log: Path) -> Outcome:
        ran.append(part.name)
        clock_s[0] += 200.0
        return PASSED

    monkeypatch.setattr(program, "run_part", run)
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    arguments = ("--part", "recorder", "--part", "events", "--minutes", "5")
    assert start(*arguments) == program.PARTS_LEFT
    assert capsys.readouterr().out.splitlines()[-1].endswith(": events: run the same command again")
    assert start(*arguments) == 0
    assert ran == ["recorder", "events"]


@pytest.mark.parametrize("minutes", ["0", "-3", "nan", "nine"])
def test_minutes_that_are_not_above_0_are_refused_in_one_line(
    start: Run, ran: list[str], capsys: pytest.CaptureFixture[str], minutes: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        start(f"--minutes={minutes}")
    assert ended.value.code == program.WRONG_SETTING
    assert f"argument --minutes: '{minutes}' is not a number of minutes above 0" in capsys.readouterr().err
    assert ran == []


def test_results_of_another_machine_do_not_count(start: Run, ran: list[str]) -> None:
    start()
    ran.clear()
    start(machine=Machine(("NVIDIA H200",), "580.1", {}))
    assert ran == ALL


def test_without_a_gpu_neither_page_nor_results_are_written(start: Run, places: program.Places) -> None:
    assert start(machine=NONE) == 0
    assert not places.page.exists()
    assert not places.results.exists()
    assert "nothing here has run on a GPU" in (places.folder / "rehearsal.md").read_text()
    start()
    record = load(places.results)
    assert record is not None
    assert places.page.read_text() == page(record)


def test_a_rehearsal_does_not_touch_the_record_of_a_gpu(start: Run, ran: list[str]) -> None:
    start()
    start(machine=NONE)
    ran.clear()
    start()
    assert ran == []


def test_wrong_names_and_a_damaged_record_are_one_line(
    start: Run, places: program.Places, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--part", "nothing") == 2
    assert capsys.readouterr().err.startswith("there is no part 'nothing': choose one of paths, ")
    places.folder.mkdir()
    (places.folder / "record.json").write_text('{"machine": 1}')
    assert start() == 2
    assert "delete it, or start over with FRESH=1" in capsys.readouterr().err


def part(script: str, limit_s: float = 60.0) -> Part:
    class Scripted(Part):
        def command(self) -> list[str]:
            return [sys.executable, "-c", script]

    return Scripted("scripted", "", limit_s)


def test_the_last_outcome_that_a_part_prints_counts(tmp_path: Path) -> None:
    line = LINE_START + json.dumps(PASSED.to_json())
    assert run_part(part(f"print('noise'); print({line!r})"), tmp_path / "log") == PASSED
    assert (tmp_path / "log").read_text().startswith("noise")


def test_a_part_that_crashes_or_contradicts_its_exit_code_has_failed(tmp_path: Path) -> None:
    line = LINE_START + json.dumps(PASSED.to_json())
    for script in ("raise SystemExit(5)", f"print({line!r}); raise SystemExit(5)", f"print({LINE_START!r} + '{{}}')"):
        assert run_part(part(script), tmp_path / "log").state == "failed"


def test_a_part_is_ended_at_its_limit_with_all_its_processes(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, pathlib, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(600)"
    )
    outcome = run_part(part(script, limit_s=3.0), tmp_path / "log")
    assert (outcome.state, outcome.reason.split(":")[0]) == ("failed", "it was ended after 3 s")
    stat = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_no_part_takes_nine_minutes() -> None:
    assert all(part.limit_s <= LONGEST_S < 9 * 60 for part in PARTS)
    assert len(set(ALL)) == len(ALL)


def test_every_part_that_measures_has_its_module() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks" / "gpu" / "measurements").glob("*.py")} - {"__init__"}
    assert {part.measurement for part in PARTS if part.measurement} == modules


def test_a_rehearsal_shows_no_figures_and_a_broken_measurement_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu.measurements import deferred_numbers

    monkeypatch.setattr(deferred_numbers, "measure", lambda device: PASSED)
    rehearsed = outcome_of("deferred_numbers", has_gpu=False)
    assert (rehearsed.state, rehearsed.figures) == ("skipped", {})
    assert outcome_of("deferred_numbers", has_gpu=True) == PASSED

    def break_down(device: str) -> Outcome:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(deferred_numbers, "measure", break_down)
    assert outcome_of("deferred_numbers", has_gpu=False).reason == "RuntimeError: device-side assert"


@pytest.mark.parametrize(
    ("tests", "code", "state"),
    [
        ({"a": "passed", "b": "skipped: needs 2 GPUs"}, 0, "passed"),
        ({"a": "skipped: needs a GPU"}, 0, "skipped"),
        ({"a": "passed", "b": "failed"}, 1, "failed"),
        ({"a": "passed"}, 3, "failed"),
        ({}, 5, "failed"),
    ],
)
def test_what_the_results_of_tests_amount_to(tests: dict[str, str], code: int, state: str) -> None:
    assert outcome_of_tests(tests, code).state == state


def test_a_broken_check_fails_the_part_and_is_named() -> None:
    outcome = Outcome.of({}, [Check("it is fast", False), Check("it is right", True)])
    assert (outcome.state, outcome.reason) == ("failed", "not seen: it is fast")


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    assert program.PAGE.read_text() == page(load(program.RESULTS)), "run: python -m benchmarks.gpu --write-page"


def test_the_page_says_in_its_first_line_that_nothing_has_run() -> None:
    assert page(None).splitlines()[0] == "# GPUs: nothing has run on one yet"


def test_pages_with_results_read_easily_and_name_mixed_sources() -> None:
    record = Record(GPU, {name: Ran(PASSED, 1.0, "a") for name in ALL})
    record.parts["ranks"] = Ran(Outcome("failed", "1 of 2 tests failed", tests={"t": "failed"}), 2.0, "b")
    text = page(record)
    assert list(complaints("gpu.md", text)) == []
    assert f"{len(ALL) - 1} of {len(ALL)} parts passed, 1 failed, 0 were skipped" in text
    assert "different versions of the sources" in text
    assert "| `t` | failed |" in text

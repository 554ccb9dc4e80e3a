"""The gate: every stage that a change must pass. All of them run, whatever fails, and the end reports everything.

    python -m tests.gate

The stages are in two lanes that run next to each other, because tests wait more than they compute. A system test that
fails is tried once more, alone, at the end: see `results.Result.may_be_repeated`. The files of a gate are in
``build/gate``: ``results.json``, and the output and the JUnit report of each stage.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from tests.gate import affected
from tests.gate.results import GATE_CPU_S, MOST_FLAKY, Result, Verdict, expensive, judge, read_results
from tests.support.programs import FRAMEWORKS_VARIABLE

FOLDER = Path("build/gate")
LINES_OF_A_LOG = 40

VENV, FRAMEWORKS, TORCHTITAN = ".venv", "build/frameworks", "build/torchtitan"
OF_TORCHTITAN = "tests/frameworks/torchtitan"
ENVIRONMENTS = "environments"
TWO_FILES = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""The tests of a file may share a run."""
PATIENT = ("--timeout", "600")
"""A run of eight ranks on a machine with other work may take minutes."""
TWO_TESTS = ("--numprocesses", "2", "--dist", "worksteal")


@dataclass(frozen=True)
class Stage:
    """A command that a change must pass."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    """After this time it is ended, and has failed."""
    venv: str = ""
    """The environment of its pytest. Empty if it runs no tests."""

    @property
    def log(self) -> Path:
        """The file of its output."""
        return FOLDER / f"{self.name}.log"

    @property
    def report(self) -> Path:
        """The file of its results, if it runs tests."""
        return FOLDER / f"{self.name}.xml"


@dataclass
class Outcome:
    """What became of a stage."""

    stage: Stage
    code: int
    seconds: float
    cpu_s: float
    results: list[Result] = field(default_factory=list)

    @property
    def broke(self) -> bool:
        """Return whether it failed, and not because of tests that failed."""
        told_by_tests = self.code == 1 and any(result.outcome == "failed" for result in self.results)
        return self.code != 0 and not told_by_tests


def tests(name: str, *arguments: str, venv: str = VENV, limit_s: float) -> Stage:
    """Return a stage of tests."""
    command = (f"{venv}/bin/python", "-m", "pytest", "--junitxml", str(FOLDER / f"{name}.xml"), *arguments)
    return Stage(name, command, limit_s, venv)


def system_files() -> list[str]:
    """Return the files with system tests, so that their stage does not import all the others."""
    return [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if "mark.system" in path.read_text()]


def lanes() -> tuple[tuple[Stage, ...], ...]:
    """Return the stages of each lane, in their order."""
    system = "system and not soak and not frameworks and (not whole or slice or gate)"
    fast = "not system and not soak and not frameworks"
    return (
        (
            tests("system", "-m", system, *PATIENT, *TWO_FILES, *system_files(), limit_s=2400),
            tests("frameworks", "-m", "frameworks and gate", *PATIENT, "--ignore", OF_TORCHTITAN, "tests/frameworks",
                  venv=FRAMEWORKS, limit_s=1800),
            tests("torchtitan", "-m", "frameworks and gate", *PATIENT, OF_TORCHTITAN, venv=TORCHTITAN, limit_s=900),
        ),
        (
            Stage(ENVIRONMENTS, ("make", f"{FRAMEWORKS}/.ready", f"{TORCHTITAN}/.ready"), 900),
            Stage("lint", ("make", "lint"), 900),
            tests("fast", "-m", fast, *TWO_TESTS, limit_s=2400),
        ),
    )  # fmt: skip


class Runner:
    """Runs stages, several at a time. At the end of the ``with`` block, none of them is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._is_over = False
        """Whether no stage may start any more."""
        self._environments_made = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            for pid in self._running:  # after an interrupt
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def run_lanes(self, *lanes: Iterable[Stage]) -> list[Outcome]:
        """Run lanes next to each other, and the stages of a lane one after the other."""
        found: list[list[Outcome]] = [[] for _ in lanes]

        def run_lane(lane: Iterable[Stage], outcomes: list[Outcome]) -> None:
            outcomes.extend(map(self.run, lane))

        threads = [threading.Thread(target=run_lane, args=each, daemon=True) for each in zip(lanes, found, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [outcome for outcomes in found for outcome in outcomes]

    def run(self, stage: Stage) -> Outcome:
        """Run a stage to its end, and say in a line how it ended."""
        environment = dict(os.environ)
        if stage.venv in (FRAMEWORKS, TORCHTITAN):
            self._environments_made.wait()
            environment[FRAMEWORKS_VARIABLE] = "required"
        began = time.monotonic()
        code, cpu_s, results = 70, 0.0, []
        try:
            code, cpu_s = self._carried_out(stage, environment)
            results = read_results(stage.report) if stage.venv else []
        except Exception as error:  # noqa: BLE001 - the lane continues, and a stage that is lost has failed
            code = code or 70
            print(f"{stage.name}: the gate failed to run it or to read its results: {error!r}", flush=True)
        finally:
            if stage.name == ENVIRONMENTS:
                self._environments_made.set()
        outcome = Outcome(stage, code, time.monotonic() - began, cpu_s, results)
        ending = "ok" if code == 0 else f"FAILED (exit code {code})"
        print(f"{stage.name:14} {outcome.seconds:6.0f} s, {cpu_s:6.0f} s of CPU: {ending}", flush=True)
        return outcome

    def _carried_out(self, stage: Stage, environment: dict[str, str]) -> tuple[int, float]:
        """Return exit code and CPU time."""
        with stage.log.open("wb") as log, self._lock:
            if self._is_over:
                return 128 + signal.SIGTERM, 0.0
            try:
                process = subprocess.Popen(
                    stage.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:  # its environment could not be made
                log.write(f"{error}\n".encode())
                return 127, 0.0
            self._running.add(process.pid)

        def end() -> None:
            print(f"{stage.name}: ended after {stage.limit_s:g} s, its limit", flush=True)
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(stage.limit_s, end)
        timer.daemon = True
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        with self._lock:
            self._running.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)  # wait4 has reaped it
        return process.returncode, used.ru_utime + used.ru_stime


def second_tries(outcomes: Iterable[Outcome]) -> Iterator[Stage]:
    """Yield stages for the tests that may have failed because the machine was busy: one after the other, alone."""
    for outcome in outcomes:
        names = [result.test for result in outcome.results if result.outcome == "failed" and result.may_be_repeated]
        if names:
            stage = outcome.stage
            yield tests(f"{stage.name}-again", "-rP", *names, venv=stage.venv, limit_s=1200)


def show(outcomes: list[Outcome], verdict: Verdict, seconds: float, cpu_s: float) -> None:
    """Print what a person must know."""
    broken = [outcome for outcome in outcomes if outcome.broke]
    for outcome in broken:
        lines = ["it has no log"]
        with contextlib.suppress(OSError):
            lines = outcome.stage.log.read_text(errors="replace").splitlines()[-LINES_OF_A_LOG:]
        print(f"\n{outcome.stage.name} failed (all of it: {outcome.stage.log})", *lines, sep="\n  ")
    for result in verdict.failed:
        print(f"\nFAILED {result.test}\n{result.log}")
    for result in verdict.flaky:
        print(f"\nFLAKY {result.test}: failed, and passed when it was tried once more, alone")
        print(f"{result.log}\n  (the second try: {FOLDER}/*-again.log)")
    results = [result for outcome in outcomes for result in outcome.results]
    for result in expensive(results):
        print(f"over its budget: {result.cpu_s:.1f} s of CPU, {result.test}")
    if cpu_s > GATE_CPU_S:
        print(f"over its budget: {cpu_s:.0f} s of CPU for the gate, {GATE_CPU_S:.0f} wanted")
    print("\n" + "\n".join(affected.report()))
    counts = {name: sum(result.outcome == name for result in results) for name in ("passed", "skipped")}
    counts["passed"] += len(verdict.flaky)
    print(f"\n{seconds:.0f} s, {cpu_s:.0f} s of CPU; {len(verdict.flaky)} FLAKY, {MOST_FLAKY} allowed")
    print(f"{counts['passed']} passed, {len(verdict.failed) + len(broken)} failed, {counts['skipped']} skipped")


def carry_out(*lanes: Iterable[Stage]) -> int:
    """Run all stages, report, and return the exit code."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    began = time.monotonic()
    with Runner() as runner:
        outcomes = runner.run_lanes(*lanes)
        again = runner.run_lanes(second_tries(outcomes))
    results = [result for outcome in outcomes for result in outcome.results]
    verdict = judge(results, [result for outcome in again for result in outcome.results])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, cpu_s = time.monotonic() - began, used.ru_utime + used.ru_stime
    is_green = verdict.is_green and not any(outcome.broke for outcome in outcomes)
    document = {
        "green": is_green,
        "seconds": round(seconds),
        "cpu_s": round(cpu_s),
        "stages": {
            outcome.stage.name: {
                "code": outcome.code, "seconds": round(outcome.seconds), "cpu_s": round(outcome.cpu_s)
            }
            for outcome in [*outcomes, *again]
        },
        "flaky": [result.test for result in verdict.flaky],
        "tests": [{**asdict(result), "markers": sorted(result.markers)} for result in results],
    }  # fmt: skip
    (FOLDER / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    show(outcomes, verdict, seconds, cpu_s)
    return 0 if is_green else 1


def main() -> int:
    """Run the gate."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The tests start thousands of Python processes. Without bytecode on disk, each compiles all of Holdfast first.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        return carry_out(*lanes())
    except KeyboardInterrupt:
        print("interrupted: the stages that ran have ended", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())

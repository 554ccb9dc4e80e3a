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
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.gate import affected
from tests.gate.results import GATE_CPU_S, MOST_FLAKY, Result, Verdict, expensive, judge, read_results
from tests.support.programs import FRAMEWORKS_VARIABLE

FOLDER = Path("build/gate")
LINES_OF_A_LOG = 40

VENV, FRAMEWORKS, TORCHTITAN = ".venv", "build/frameworks", "build/torchtitan"
IN_GATE = "not whole or slice or gate"
TWO_AT_A_TIME = ("--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")


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


LANES = (
    (tests("tests", "-m", f"not soak and not frameworks and ({IN_GATE})", *TWO_AT_A_TIME, limit_s=2400),),
    (
        Stage("lint", ("make", "lint"), 900),
        Stage("environments", ("make", f"{FRAMEWORKS}/.ready", f"{TORCHTITAN}/.ready"), 900),
        tests("frameworks", "-m", "frameworks and gate", "--ignore", "tests/frameworks/torchtitan", "tests/frameworks",
              venv=FRAMEWORKS, limit_s=900),
        tests("torchtitan", "-m", "frameworks and gate", "tests/frameworks/torchtitan", venv=TORCHTITAN, limit_s=600),
    ),
)  # fmt: skip


def run(stage: Stage) -> Outcome:
    """Run a stage to its end, and say in a line how it ended."""
    began = time.monotonic()
    environment = {**os.environ, **({FRAMEWORKS_VARIABLE: "required"} if stage.venv not in ("", VENV) else {})}
    with stage.log.open("wb") as log:
        process = subprocess.Popen(
            stage.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        _running.append(process.pid)
        timer = threading.Timer(stage.limit_s, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        _, status, used = os.wait4(process.pid, 0)
        timer.cancel()
        _running.remove(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)  # wait4 has reaped it
    outcome = Outcome(
        stage,
        process.returncode,
        time.monotonic() - began,
        used.ru_utime + used.ru_stime,
        read_results(stage.report) if stage.venv else [],
    )
    ending = "ok" if outcome.code == 0 else f"FAILED (exit code {outcome.code})"
    print(f"{stage.name:14} {outcome.seconds:6.0f} s, {outcome.cpu_s:6.0f} s of CPU: {ending}", flush=True)
    return outcome


def repeat(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Try the tests once more that may have failed because the machine was busy, one after the other, alone."""
    again = []
    for outcome in outcomes:
        names = [result.test for result in outcome.results if result.outcome == "failed" and result.may_be_repeated]
        if names:
            environment = outcome.stage.venv
            again.append(run(tests(f"{outcome.stage.name}-again", "-rP", *names, venv=environment, limit_s=1200)))
    return again


def show(outcomes: list[Outcome], verdict: Verdict, seconds: float, cpu_s: float) -> bool:
    """Print what a person must know, and return whether the change may land."""
    broken = [outcome for outcome in outcomes if outcome.broke]
    for outcome in broken:
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
    return verdict.is_green and not broken


def main() -> int:
    """Run the gate."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    began = time.monotonic()
    # The tests start thousands of Python processes. Without bytecode on disk, each compiles all of Holdfast first.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with ThreadPoolExecutor(len(LANES)) as pool:
            outcomes = [
                outcome for lane in pool.map(lambda lane: [run(stage) for stage in lane], LANES) for outcome in lane
            ]
        again = repeat(outcomes)
    finally:
        for pid in _running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    results = [result for outcome in outcomes for result in outcome.results]
    verdict = judge(results, [result for outcome in again for result in outcome.results])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, cpu_s = time.monotonic() - began, used.ru_utime + used.ru_stime
    is_green = show(outcomes, verdict, seconds, cpu_s)
    document = {
        "green": is_green,
        "seconds": round(seconds),
        "cpu_s": round(cpu_s),
        "stages": [
            {
                "name": outcome.stage.name,
                "seconds": round(outcome.seconds),
                "cpu_s": round(outcome.cpu_s),
                "code": outcome.code,
            }
            for outcome in [*outcomes, *again]
        ],
        "flaky": [result.test for result in verdict.flaky],
        "tests": [{**asdict(result), "markers": sorted(result.markers)} for result in results],
    }
    (FOLDER / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    return 0 if is_green else 1


_running: list[int] = []

if __name__ == "__main__":
    sys.exit(main())

"""Profiles of a loop in this process: the files, the script's own profilers, and every way to end early."""

import gzip
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from holdfast_hooks.hook_errors import OnceLog
from holdfast_hooks.profiling import profile_files, torch_profile
from holdfast_hooks.profiling.step_profiler import StepProfiler
from holdfast_proto.v1.session_pb2 import ProfileDone, ProfileSteps
from tests.support.coroutines import PATIENCE_S, wait_until

CPU = [ProfilerActivity.CPU]
AUTOGRAD: Any = torch.autograd
"""torch.autograd with its private names, which have no types."""


class Loop:
    """A training loop that asks a profiler at the end of each step, as the hooks do."""

    def __init__(self, folder: Path) -> None:
        self.profiler = StepProfiler(3, OnceLog())
        self.folder = folder
        self.step = 0
        self._model = torch.nn.Linear(8, 8)

    def request(self, name: str = "a", *, steps: int = 2, patience_s: float = PATIENCE_S) -> tuple[bool, str]:
        wanted = ProfileSteps(request=name, steps=steps, directory=str(self.folder), patience_s=patience_s)
        return self.profiler.request(wanted)

    def one_step(self) -> None:
        self._model(torch.ones(4, 8)).sum().backward()
        if self.profiler.due:
            self.profiler.at_boundary(self.step)
        self.step += 1

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := condition():
                return found
            self.one_step()
            time.sleep(0.001)
        raise AssertionError("the condition was not met")

    def until_profiled(self) -> None:
        self.until(AUTOGRAD._profiler_enabled)

    def end(self) -> ProfileDone:
        done: ProfileDone = self.until(self.profiler.take_done)
        assert not self.profiler.due
        return done


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    module = AUTOGRAD.profiler
    before = (module._prepare_profiler, module._enable_profiler)
    yield Loop(tmp_path)
    assert (module._prepare_profiler, module._enable_profiler) == before
    assert not AUTOGRAD._profiler_enabled()


def names_in(path: Path) -> list[str]:
    with gzip.open(path) as file:
        return [event.get("name", "") for event in json.load(file)["traceEvents"]]


def test_a_profile_has_the_steps_that_were_asked_for_and_is_private(loop: Loop) -> None:
    assert loop.request(steps=3) == (True, "")
    done = loop.end()
    assert (done.request, done.problem, done.last_step - done.first_step) == ("a", "", 2)
    name = f"rank-00003.steps-{done.first_step}-{done.last_step}.trace.json.gz"
    assert list(done.files) == [name]
    assert [path.name for path in loop.folder.iterdir()] == [name]
    assert (loop.folder / name).stat().st_mode & 0o777 == 0o600
    names = names_in(loop.folder / name)
    marks = {f"ProfilerStep#{step}" for step in range(done.first_step, done.last_step + 1)}
    assert {each for each in names if each.startswith("ProfilerStep")} == marks
    assert {"aten::addmm", "[memory]"} <= set(names)


def test_one_profile_runs_at_a_time_and_a_repeated_request_is_the_same_profile(loop: Loop) -> None:
    assert loop.request("a") == (True, "")
    assert loop.request("a") == (True, "")
    is_accepted, reason = loop.request("b")
    assert not is_accepted
    assert "another profile of this rank is under way" in reason
    done = loop.end()
    assert loop.request("a") == (True, "")  # the answer was lost
    assert loop.profiler.take_done() == done
    assert loop.request("b") == (True, "")
    assert loop.end().request == "b"


def test_steps_are_bounded(loop: Loop) -> None:
    for steps in (0, 101):
        assert loop.request(steps=steps) == (False, f"{steps} steps are out of range: profile 1 to 100")


def test_a_profiler_of_the_script_that_runs_or_warms_up_is_left_alone(loop: Loop) -> None:
    warming = profile(activities=CPU, schedule=schedule(wait=1, warmup=10**6, active=1))
    warming.start()
    warming.step()
    loop.request("a")
    assert "the script's own torch profiler" in loop.end().problem
    warming.stop()
    with profile(activities=CPU) as own:
        loop.request("b")
        assert "the script's own torch profiler" in loop.end().problem
    assert own.events()
    loop.request("c")
    assert loop.end().problem == ""  # neither runs any more


def test_a_profiler_that_the_script_starts_meanwhile_works_and_ends_ours(loop: Loop) -> None:
    loop.request(steps=100)
    loop.until_profiled()
    with profile(activities=CPU) as own:
        torch.ones(2).add(1)
    assert any(event.name == "aten::add" for event in own.events())
    assert "this one gave way" in loop.end().problem
    loop.request("b")
    assert loop.end().problem == ""


def test_a_profiler_of_another_thread_waits_until_ours_has_ended(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_profile, "_PATIENCE_S", PATIENCE_S)
    events: list[str] = []

    def own() -> None:
        with profile(activities=CPU) as started:
            torch.ones(2).add(1)
        events.extend(event.name for event in started.events())

    loop.request(steps=100)
    loop.until_profiled()
    assert loop.profiler._job is not None
    ours = loop.profiler._job.profile
    assert ours is not None
    thread = threading.Thread(target=own)
    thread.start()
    # Ours would be complete before a busy machine has started the thread, if the loop went on.
    wait_until(lambda: ours.is_wanted_elsewhere, "the thread asks for room")
    assert "this one gave way" in loop.end().problem
    thread.join()
    assert "aten::add" in events


def test_a_trace_that_another_thread_has_taken_is_never_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # In a process of its own: to stop a profile without a trace ends it, and the thread's profiler stays enabled here.
    program = f"""
import threading, torch
from pathlib import Path
from torch.profiler import ProfilerActivity, profile
from holdfast_hooks.profiling import torch_profile
from tests.trainer_hooks.profiling.test_step_profiler import Loop
torch_profile._PATIENCE_S = 0.1
loop = Loop(Path({str(tmp_path)!r}))
loop.request(steps=100)
loop.until_profiled()
def own():
    with profile(activities=[ProfilerActivity.CPU]):
        torch.ones(2).add(1)
thread = threading.Thread(target=own)
thread.start()
thread.join()  # this thread ends no step meanwhile
print(loop.end().problem)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "this one gave way" in ended.stdout


def test_a_profile_that_just_ends_keeps_its_trace_however_long_another_thread_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_profile, "_PATIENCE_S", 0.0)
    way = torch_profile.GiveWay(torch, lambda: None)
    assert way.claim()
    thread = threading.Thread(target=way._make_room)
    thread.start()
    wait_until(lambda: way.is_asked, "the thread asks for room")
    way.uninstall()
    thread.join()
    assert not way.is_robbed


def test_a_forked_child_profiles_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    way = torch_profile.GiveWay(torch, lambda: ended.append(True))
    monkeypatch.setattr(way, "_pid", -1)
    way._make_room()
    assert not ended


def test_a_rank_that_leaves_training_ends_the_profile(loop: Loop) -> None:
    loop.request(steps=50)
    loop.until_profiled()
    loop.one_step()
    loop.profiler.close()
    done = loop.profiler.take_done()
    assert done is not None
    assert "the rank left training after 1 of 50 steps" in done.problem
    assert list(loop.folder.iterdir()) == []
    assert loop.request("b") == (False, "this rank has left training")


def test_the_last_step_of_a_loop_ends_the_profile(loop: Loop) -> None:
    loop.request("a", steps=50)
    loop.until_profiled()
    loop.one_step()
    loop.profiler.at_boundary(loop.step, is_last=True)
    assert "the training loop ended after 2 of 50 steps" in loop.end().problem
    loop.request("b", steps=1)
    loop.until_profiled()
    loop.profiler.at_boundary(loop.step, is_last=True)
    assert loop.end().problem == ""  # it is complete


def test_another_thread_that_closes_the_hooks_does_not_stop_the_profiler_of_the_training_thread(tmp_path: Path) -> None:
    # In a process of its own, because the profiler stays enabled in the thread.
    program = f"""
import threading
from pathlib import Path
from tests.trainer_hooks.profiling.test_step_profiler import Loop
loop = Loop(Path({str(tmp_path)!r}))
loop.request(steps=100)
is_profiled = threading.Event()
def train():
    loop.until_profiled()
    is_profiled.set()
    threading.Event().wait()
threading.Thread(target=train, daemon=True).start()
is_profiled.wait()
loop.profiler.close()
print(loop.profiler.take_done().problem)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "the rank left training after" in ended.stdout


def test_steps_that_take_too_long_end_the_profile(loop: Loop) -> None:
    loop.request(steps=100, patience_s=PATIENCE_S)
    loop.until_profiled()
    assert loop.profiler._job is not None
    loop.profiler._job.until_s = 0.0
    assert f"ended within {PATIENCE_S:.0f} s" in loop.end().problem


def test_a_torch_that_raises_ends_the_profile_and_not_the_training(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("CUPTI\nis missing")

    monkeypatch.setattr(torch.autograd.profiler, "_enable_profiler", fail)
    for name in ("a", "b"):
        loop.request(name)
        assert loop.end().problem == "torch's profiler failed: RuntimeError: CUPTI is missing"
    assert [record.name for record in caplog.records].count("holdfast_hooks") == 1
    monkeypatch.undo()
    loop.request("c")
    assert loop.end().problem == ""  # nothing of the failed ones is left


def test_a_full_disk_and_a_missing_folder_are_one_line_each(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_files, "LEAST_FREE_BYTES", 1 << 80)
    loop.request("a")
    assert "MiB free, and a profile needs" in loop.end().problem
    monkeypatch.undo()
    # torch says nothing if it cannot write all.
    monkeypatch.setattr(profile, "export_chrome_trace", lambda self, path: Path(path).write_text('{"traceEvents": ['))
    loop.request("b")
    assert "torch wrote 0 MiB and not all" in loop.end().problem
    assert list(loop.folder.iterdir()) == []
    monkeypatch.undo()
    shutil.rmtree(loop.folder)
    loop.request("c")
    assert loop.end().problem == f"{loop.folder}: No such file or directory: the profile needs this folder"

"""Healthy controls: slow or odd for a good reason, so nothing may be reported about them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harmed_runs.harmed_run import HarmedRun
from holdfast_agent.checkpoints import worker
from holdfast_cli.control import rank_pids
from holdfast_cli.settings.schema import PresetName
from holdfast_hooks.faults import Fault
from holdfast_proto.v1 import store_pb2 as store

PRESETS = {preset.value: preset for preset in PresetName}
LAYOUT = "dp2tp2"

FIRST_STEP_S = 8.0
"""Longer than the floors of the presets fast and default."""
OCCASIONAL_S = 3.0
"""Three floors of the preset fast."""
LOADED_S = 4.0
FROZEN_S = 4.0
WORKERS_PATIENCE_S = 30.0
"""Until an agent that was asked for a checkpoint has started a worker for it."""
AFTERMATH_S = 0.7
"""Seconds after the end of a control in which a false report may still come."""

_DEADLINE_SHARE = 0.6
_LONGEST_PAUSE_S = 4.0
_JUMP_S = 3600.0
_POLL_S = 0.02


@dataclass(frozen=True)
class ControlOutcome:
    """A healthy control, and what was reported about it."""

    preset: str
    control: str
    said: tuple[str, ...]
    """Kinds and messages of all incidents; empty if all is well."""


def healthy_controls(folder: Path, presets: tuple[str, ...], controls: tuple[str, ...]) -> Iterator[ControlOutcome]:
    """Yield the outcome of each control under each preset, in one run per preset."""
    for preset in presets:
        run = HarmedRun(LAYOUT, folder, preset=PRESETS[preset], first_step_s=FIRST_STEP_S, name=f"healthy-{preset}")
        with run:
            run.until_trained()
            yield ControlOutcome(preset, "slow first step", _said(run, 0))
            for control in controls:
                status = run.until_trained_on()
                CONTROLS[control](run, min(_LONGEST_PAUSE_S, _DEADLINE_SHARE * status.deadline_s))
                run.until_trained_on()
                time.sleep(AFTERMATH_S)
                yield ControlOutcome(preset, control, _said(run, status.incidents))


def _said(run: HarmedRun, known: int) -> tuple[str, ...]:
    return tuple(
        f"{store.VerdictKind.Name(incident.verdict.kind)}: {incident.verdict.message}"
        for incident in run.incidents()[known:]
    )


def _long_checkpoint(run: HarmedRun, _: float) -> None:
    run.assign("checkpoint", seconds=OCCASIONAL_S)
    time.sleep(OCCASIONAL_S)


def _evaluation(run: HarmedRun, _: float) -> None:
    run.assign("eval", seconds=OCCASIONAL_S)
    time.sleep(OCCASIONAL_S)


def _one_evaluates(run: HarmedRun, _: float) -> None:
    run.assign("eval", seconds=OCCASIONAL_S, rank=1)
    time.sleep(OCCASIONAL_S)


def _paused(run: HarmedRun, pause_s: float) -> None:
    pid = rank_pids(run.local.status())[2]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(pause_s)
    os.kill(pid, signal.SIGCONT)


def _all_paused(run: HarmedRun, pause_s: float) -> None:
    pids = rank_pids(run.local.status()).values()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(pause_s)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def _agent_paused(run: HarmedRun, _: float) -> None:
    pid = run.local.stack.pids().get("agent")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(pid, signal.SIGCONT)


def _long_data_wait(run: HarmedRun, pause_s: float) -> None:
    run.inject(Fault("data-stall", rank=3, duration_s=pause_s))
    time.sleep(pause_s)


def _loaded_machine(_: HarmedRun, __: float) -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    time.sleep(LOADED_S)
    for process in busy:
        process.kill()
        process.wait()


def _clock_forward(run: HarmedRun, _: float) -> None:
    run.inject(Fault("clock-jump", rank=0, duration_s=_JUMP_S))


def _clock_back(run: HarmedRun, _: float) -> None:
    run.inject(Fault("clock-jump", rank=1, duration_s=-_JUMP_S))


def _frozen_checkpoint_disk(run: HarmedRun, _: float) -> None:
    """Stop the workers that write checkpoints. To other processes they seem to wait for the disk."""
    agent = run.local.stack.pids().get("agent")
    assert agent is not None
    run.local.control.take_checkpoint()
    workers = _until_started(agent)
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(FROZEN_S)
    for pid in workers:
        os.kill(pid, signal.SIGCONT)


def _until_started(agent: int) -> list[int]:
    """Return the checkpoint workers of an agent once there are any. Raises TimeoutError: the control would be none."""
    deadline = time.monotonic() + WORKERS_PATIENCE_S
    while not (workers := checkpoint_workers(agent)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"agent {agent} has started no checkpoint worker within {WORKERS_PATIENCE_S:g} s")
        time.sleep(_POLL_S)
    return workers


def checkpoint_workers(agent: int) -> list[int]:
    """Return the pids of an agent's checkpoint workers."""
    found = []
    for child in psutil.Process(agent).children():
        with contextlib.suppress(psutil.Error):
            if worker.__name__ in child.cmdline():
                found.append(child.pid)
    return found


CONTROLS: dict[str, Callable[[HarmedRun, float], None]] = {
    "long checkpoint": _long_checkpoint,
    "evaluation": _evaluation,
    "evaluation on one rank": _one_evaluates,
    "one rank paused": _paused,
    "all ranks paused": _all_paused,
    "agent paused": _agent_paused,
    "long data wait": _long_data_wait,
    "loaded machine": _loaded_machine,
    "clock forward": _clock_forward,
    "clock back": _clock_back,
    "frozen disk of the checkpoint": _frozen_checkpoint_disk,
}
"""Functions by name. Each gets the run, and the seconds for which a rank may be held up without a verdict."""

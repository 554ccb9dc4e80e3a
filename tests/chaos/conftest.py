"""Real runs on this machine: Redis, daemon, agent, warm parent and four ranks, all of them processes."""

import contextlib
import math
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast_checkpoint.store.run_checkpoints import open_checkpoints
from holdfast_cli.commands.demo import state_differences
from holdfast_cli.control import ControlClient, ControlError
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.settings.schema import PresetName
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import (
    INCIDENT_STATE_RESOLVED,
    INCIDENT_STATE_STANDSTILL,
    LIFE_RUNNING,
    RUN_PHASE_FINISHED,
    Incident,
)
from tests.support.tiers import expect_system_marker

STEPS = 40
RANKS = 4
CHECKPOINT_EVERY = 10
PATIENCE_S = 120.0
CLOCKS_S = 0.5
"""Most time between a moment of a run's account and the test's own reading of a clock. The run is created in between,
and its start, an answer of its daemon or its end is seen a little later than it happens. No more is allowed for: a
machine that is busy makes the interval longer that the test measures, and not the difference."""
UNDISTURBED = "undisturbed"
HERE = str(Path(__file__).parent)

CONFIG = f"""
[model]
dim = 32
layers = 2
heads = 2
kv_heads = 2
hidden = 64

[parallel]
dp = 2
tp = 1
pp = 2
microbatches = 2

[data]
source = "stdlib"
sequence = 32

[train]
steps = {STEPS}
global_batch = 4
validate_every = 10
validation_batches = 1

[optimizer]
warmup_steps = 4
"""


@dataclass(frozen=True)
class Runs:
    """Runs of one and the same training job."""

    folder: Path
    config: Path
    mark: str
    """Value in the environment of every process of these runs."""

    def options(
        self, name: str, *, steps: int = STEPS, flags: tuple[str, ...] = (), **changes: object
    ) -> LocalRunOptions:
        command = ("python", "-m", "paced", "--config", str(self.config), "--train.steps", str(steps), *flags)
        settings: dict[str, object] = {
            "ranks": RANKS,
            "checkpoint_every": CHECKPOINT_EVERY,
            "snapshot_every": 1,
            "preset": PresetName.FAST,
            "environment": self.environment(name),
            **changes,
        }
        if "checkpoint_directory" in settings:  # a string, which may be a URL
            settings["checkpoint_directory"] = str(settings["checkpoint_directory"])
        return LocalRunOptions(run=name, command=command, directory=self.folder, **settings)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def run(self, name: str, *, hurry: bool = False, **changes: object) -> Iterator[LocalRun]:
        """Yield a run that trains. At the end, nothing of it may be left."""
        if hurry:
            self.hurry(name)
        else:
            self.hurry_file(name).unlink(missing_ok=True)
        with LocalRun(self.options(name, **changes)) as local:  # type: ignore[arg-type]
            paths = local.paths
            yield local
        assert not self.processes(name)
        assert not paths.runtime.exists()
        assert not paths.memory.exists()

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables for the trainer of a run: see ``paced/``."""
        places = filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
        hurry = str(self.hurry_file(name))
        return {"HOLDFAST_TEST_MARK": self.mark, "PACED_HURRY": hurry, "PYTHONPATH": os.pathsep.join(places)}

    def run_script(self, script: Path, flags: Sequence[str], *words: str) -> "subprocess.CompletedProcess[str]":
        """Call `holdfast run` for a script, in the script's folder, until it ends. Nothing of it may be left."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast_cli", "run", *flags, "--", "python", str(script), *words],
            cwd=script.parent,
            env={**os.environ, "HOLDFAST_TEST_MARK": self.mark},
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert not self.processes()
        return done

    def hurry_file(self, name: str) -> Path:
        """Return the path of a file. While the file does not exist, every step of a run takes a little longer."""
        return self.folder / f"{name}.hurry"

    def hurry(self, name: str) -> None:
        """Let a run train at full speed, because nothing more will be done to it."""
        self.hurry_file(name).touch()

    def processes(self, name: str | None = None) -> list[str]:
        """Return the command lines of live processes, of one of these runs or of all."""
        mark = str(self.hurry_file(name)) if name else self.mark
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark.encode() in (entry / "environ").read_bytes():
                        found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def checkpoints(self, name: str) -> list[int]:
        """Return the steps of a run's checkpoints, ascending."""
        return open_checkpoints(str(self.folder / name / "checkpoints"), self.folder, 1, run=name).committed()

    def final_checkpoint(self, name: str, step: int = STEPS - 1) -> Path:
        return self.folder / name / "checkpoints" / f"step-{step:08}"


@pytest.fixture(autouse=True)
def _is_marked(request: pytest.FixtureRequest) -> None:
    expect_system_marker(request)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "config.toml"
    config.write_text(CONFIG)
    return Runs(folder, config, uuid.uuid4().hex)


@pytest.fixture(scope="session")
def undisturbed(runs: Runs) -> Path:
    """The final checkpoint of a run without faults. Its other checkpoints are in the same folder."""
    with runs.run(UNDISTURBED, checkpoints_kept=STEPS) as local:
        # In a hurry, a checkpoint that is due while the one before is being written would be left out.
        until(local, lambda status: status.newest_checkpoint == STEPS - 1 - CHECKPOINT_EVERY)
        runs.hurry(UNDISTURBED)
        status = local.wait(timeout_s=PATIENCE_S)
        assert status.phase == RUN_PHASE_FINISHED, status.outcome
        assert not faults(local)
    return runs.final_checkpoint(UNDISTURBED)


def local_run_of(code: str, name: str, folder: Path, *words: str, **options: object) -> LocalRun:
    """Return a run of a script with this code. Its files are in ``folder``."""
    script = folder / "train.py"
    script.write_text(code)
    command = ("python", str(script), *words)
    settings: dict[str, object] = {"run": name, "command": command, "directory": folder / "runs", **options}
    return LocalRun(LocalRunOptions(preset=PresetName.FAST, **settings))  # type: ignore[arg-type]


def faults(local: LocalRun) -> list[Incident]:
    """Return the incidents, except those of a short standstill, as the machine may be busy."""
    return [
        one
        for one in local.control.incidents()
        if one.state not in (INCIDENT_STATE_STANDSTILL, INCIDENT_STATE_RESOLVED)
    ]


def until(local: LocalRun | ControlClient, condition: Callable[[RunStatus], bool]) -> RunStatus:
    """Wait until the run's status meets a condition. A time without a daemon does no harm."""
    deadline = time.monotonic() + PATIENCE_S
    status = None
    while time.monotonic() < deadline:
        with contextlib.suppress(ControlError):
            status = local.status()
            if condition(status):
                return status
        time.sleep(0.05)
    raise AssertionError(f"the condition was not met within {PATIENCE_S:g} s: {status}")


def status_and_age(local: LocalRun, began_unix_s: float) -> tuple[RunStatus, tuple[float, float]]:
    """Return the status, and between which ages of the run it was made, by the test's clock: seconds."""
    asked_unix_s = time.time()
    status = local.status()
    return status, (asked_unix_s - began_unix_s, time.time() - began_unix_s)


def expect_every_second_in(time_use_s: Mapping[str, float], age_s: tuple[float, float]) -> None:
    """Check that the uses of a run's time sum to its age, within 1 %. ``age_s``: between which two it is, seconds."""
    least_s, most_s = age_s
    total_s = math.fsum(time_use_s.values())
    shown = f"{total_s:.3f} s are accounted for, of {least_s:.3f} to {most_s:.3f} s: {dict(time_use_s)}"
    assert total_s >= least_s - max(0.01 * least_s, CLOCKS_S), shown
    assert total_s <= most_s + max(0.01 * most_s, CLOCKS_S), shown
    assert all(seconds >= 0.0 for seconds in time_use_s.values()), shown


def until_step(local: LocalRun | ControlClient, step: int) -> RunStatus:
    return until(local, lambda status: status.newest_step >= step)


def until_all_attached(local: LocalRun) -> RunStatus:
    """Wait until every rank has a session with the agent, as long as it may take after the agent was replaced."""
    return until(local, lambda status: [rank.life for rank in status.ranks] == RANKS * [LIFE_RUNNING])


def finish(local: LocalRun, undisturbed: Path, runs: Runs, name: str, *, step: int = STEPS - 1) -> RunStatus:
    """Wait for the end, and check that the weights are those of the undisturbed run."""
    runs.hurry(name)
    status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    expect_the_weights_of(undisturbed, runs, name, step, local.checkpoints)
    return status


def expect_the_weights_of(undisturbed: Path, runs: Runs, name: str, step: int, checkpoints: str) -> None:
    """Check that the checkpoint of a step of a run has the bits of ``undisturbed``, which is a checkpoint too."""
    line = open_checkpoints(checkpoints, runs.folder, 1, run=name)
    line.histories.refresh()  # after a fallback it is in another history
    assert state_differences(undisturbed, line.at(step).step_directory(step)) == []

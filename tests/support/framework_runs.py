"""Runs of two ranks that train with a framework: alone, under `holdfast run` with a kill, and under `observe`."""

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from holdfast_cli.control import ControlClient
from holdfast_cli.local_run.local_run import LocalRun
from holdfast_cli.local_run.run_options import LocalRunOptions
from holdfast_cli.run_folder.record import load_record
from holdfast_cli.settings.schema import PresetName
from holdfast_proto.v1.control_pb2 import RunStatus
from holdfast_proto.v1.store_pb2 import RUN_PHASE_FINISHED, VERDICT_KIND_HUNG_COLLECTIVE, Verdict
from tests.support.local_runs import wait_for

RANKS = 2
PATIENCE_S = 200.0
JOBS = Path(__file__).parents[1] / "frameworks" / "jobs"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS))


def environment(hurry: Path) -> dict[str, str]:
    """Return the variables for ranks. While the file ``hurry`` does not exist, each step takes longer."""
    return {"PACED_HURRY": str(hurry), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_alone(job: str, out: Path, *flags: str) -> None:
    """Train without Holdfast, by torchrun."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        [*TORCHRUN, str(JOBS / job), str(out), *flags],
        env={**variables, **environment(Path("/"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@contextlib.contextmanager
def started(folder: Path, name: str, job: str, out: Path, *flags: str, **settings: object) -> Iterator[LocalRun]:
    """Yield a run under Holdfast whose steps are slow."""
    chosen: dict[str, object] = {"ranks": RANKS, "snapshot_every": 1, "checkpoint_every": 0, "preset": PresetName.FAST}
    options = LocalRunOptions(
        run=name,
        command=(sys.executable, str(JOBS / job), str(out), *flags),
        directory=folder,
        environment=environment(hurry_file(folder, name)),
        **{**chosen, **settings},  # type: ignore[arg-type]
    )
    with LocalRun(options) as local:
        yield local


@contextlib.contextmanager
def observed(
    folder: Path,
    name: str,
    job: str,
    out: Path,
    *flags: str,
    launcher: Sequence[str] = TORCHRUN,
    options: Sequence[str] = (),
) -> Iterator[ControlClient]:
    """Yield the daemon of a run that a launcher has started under `holdfast observe`, and whose steps are slow."""
    holdfast = [sys.executable, "-m", "holdfast_cli", "observe", "--run", name, "--preset", "fast", *options]
    process = subprocess.Popen(
        [*holdfast, "--directory", str(folder), "--", *launcher, str(JOBS / job), str(out), *flags],
        env={**os.environ, **environment(hurry_file(folder, name))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def look() -> ControlClient | None:
        assert process.poll() is None, "it has ended"
        record = load_record(folder / name)
        return None if record is None else ControlClient(Path(record.control), record.run, timeout_s=2.0)

    try:
        yield wait_for(look, "the daemon")
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def hurry_file(folder: Path, name: str) -> Path:
    """Return the file that lets a run train at full speed once it exists."""
    return folder / f"{name}.hurry"


def at_step(local: LocalRun | ControlClient, step: int) -> RunStatus:
    """Wait until the run has trained ``step``; return its status."""

    def look() -> RunStatus | None:
        status = local.status()
        return status if status.newest_step >= step and all(rank.pid for rank in status.ranks) else None

    return wait_for(look, f"step {step}")


def logged(status: RunStatus) -> dict[str, float]:
    """Return the newest numbers that the script or its framework has logged, by their names."""
    return {number.name: number.value for number in status.logged}


def expect_logged(control: ControlClient, *names: str) -> None:
    """Wait until numbers with these names were logged."""
    wait_for(lambda: set(names) <= logged(control.status()).keys(), f"the numbers {names}")


def hung_and_killed(local: LocalRun, step: int, *, hangs: bool) -> None:
    """Kill rank 1 after ``step``. If it ``hangs``, first stop it in an early step, and see it named and restarted."""
    if hangs:
        first = at_step(local, 2)
        os.kill(first.ranks[1].pid, signal.SIGSTOP)
        expect_named(local.control, 1)
        wait_for(lambda: local.status().generation > first.generation, "a restart after the hang")
    second = at_step(local, step)
    os.kill(second.ranks[1].pid, signal.SIGKILL)
    wait_for(lambda: local.status().generation > second.generation, "a restart after the kill")


def finish(local: LocalRun, folder: Path, name: str) -> RunStatus:
    """Let the run train at full speed; return the status at its end."""
    hurry_file(folder, name).touch()
    status = local.wait(timeout_s=PATIENCE_S)
    assert status.phase == RUN_PHASE_FINISHED, status.outcome
    return status


def samples(out: Path, rank: int) -> dict[int, list[int]]:
    """Return the samples of each step. A step that was trained again must have used the same ones."""
    used: dict[int, list[int]] = {}
    for line in (out / f"samples-{rank}").read_text().splitlines():
        step, _, rest = line.partition(" ")
        assert used.setdefault(int(step), ast.literal_eval(rest)) == ast.literal_eval(rest), f"step {step}"
    return used


def expect_the_same(undisturbed: Path, other: Path) -> None:
    """Check that two runs used the same samples in each step, and ended with the same weights and optimizer."""
    for rank in range(RANKS):
        assert samples(other, rank) == samples(undisturbed, rank)
    files = sorted(path.name for path in (undisturbed / "model").glob("*.safetensors"))
    assert files
    for name in files:
        assert (other / "model" / name).read_bytes() == (undisturbed / "model" / name).read_bytes()
    expect_the_same_state(undisturbed / "optimizer.pt", other / "optimizer.pt")


def expect_the_same_state(undisturbed: Path, other: Path) -> None:
    """Check that two files of torch have the same values, those of an optimizer among them."""
    first, second = (_flat(torch.load(path, weights_only=True)) for path in (undisturbed, other))
    assert [name for name, _ in first] == [name for name, _ in second]
    assert [name for (name, value), (_, found) in zip(first, second, strict=True) if value != found] == []
    assert any("exp_avg" in name for name, _ in first)


def expect_hang_named(control: ControlClient, hurry: Path) -> None:
    """Have rank 1 stand still in its model. Check that the incident names the rank and the line."""
    hurry.with_name(f"{hurry.name}.hang").touch()
    named = re.compile(r"rank 1 sleeps in .*, at stand_still \([a-z_]+_job\.py:\d+\)")

    def look() -> Verdict | None:
        # The first verdict may come before the stack of the rank, on a busy machine.
        return next((one.verdict for one in control.incidents() if named.match(one.verdict.message)), None)

    verdict = wait_for(look, "an incident with the line")
    assert verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
    assert list(verdict.culprits) == [1]


def expect_named(control: ControlClient, rank: int) -> None:
    """Wait for an incident, and check that it names the rank that was stopped, and where."""
    verdict = wait_for(control.incidents, "an incident")[0].verdict
    assert verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
    assert list(verdict.culprits) == [rank]
    assert verdict.message.startswith(f"rank {rank} is stopped in ")


def _flat(state: object, name: str = "") -> list[tuple[str, object]]:
    if isinstance(state, dict):
        return [item for key, value in state.items() for item in _flat(value, f"{name}/{key}")]
    if isinstance(state, list | tuple):
        return [item for index, value in enumerate(state) for item in _flat(value, f"{name}/{index}")]
    if isinstance(state, torch.Tensor):
        return [(name, state.contiguous().numpy().tobytes())]
    return [(name, state)]

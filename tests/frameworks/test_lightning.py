"""Lightning under Holdfast: a killed run ends as an undisturbed one, a hung rank is named, nothing else changes."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_cli.control import ControlClient
from holdfast_proto.rank_context import VARIABLE
from holdfast_proto.v1.store_pb2 import VERDICT_KIND_HUNG_COLLECTIVE, Verdict
from tests.support.framework_runs import (
    JOBS,
    RANKS,
    TORCHRUN,
    at_step,
    expect_the_same_state,
    finish,
    logged,
    observed,
    run_alone,
    samples,
    started,
)
from tests.support.local_runs import wait_for
from tests.support.programs import framework

framework("lightning")

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

JOB = "lightning_job.py"
MID_EPOCH = 13
"""Step in whose epoch, the second of three, a part of the batches has been trained and a validation is due."""
EPOCH_END = 9
"""Last step of the first epoch. At its end ModelCheckpoint writes a file, whose name has the epoch in it."""
ENTRY_POINTS = """[lightning.pytorch.callbacks_factory]
holdfast = holdfast_lightning:callbacks

[pytorch_lightning.callbacks_factory]
holdfast = holdfast_lightning:callbacks
"""


@pytest.fixture
def entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare the entry points as an installed package does, in place of those of a package that is installed."""
    found = tmp_path / "installed" / "holdfast_torch-0.1.0.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-torch\nVersion: 0.1.0\n")
    (found / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", str(found.parent), prepend=os.pathsep)


def alone(folder: Path, *flags: str) -> dict[str, list[int]]:
    """Train without Holdfast. Take the files of ModelCheckpoint away, and return the steps of each kind."""
    run_alone(JOB, folder / "alone", str(folder / "files"), *flags)
    (folder / "files").rename(folder / "files-alone")
    return files(folder / "files-alone")


def files(folder: Path) -> dict[str, list[int]]:
    return {
        kind.name: sorted(int(path.stem.rpartition("=")[2]) for path in kind.iterdir()) for kind in folder.iterdir()
    }


def expect_the_same_end(folder: Path, other: str) -> None:
    """Check what each rank ends with: Lightning's own checkpoint, metrics, random states, handlers and samples."""
    for rank in range(RANKS):
        assert samples(folder / other, rank) == samples(folder / "alone", rank)
        expect_the_same_state(folder / "alone" / f"end-{rank}.pt", folder / other / f"end-{rank}.pt")


@pytest.mark.parametrize(
    ("flags", "step"),
    [
        pytest.param((), MID_EPOCH, marks=pytest.mark.gate),
        pytest.param((), EPOCH_END, marks=pytest.mark.soak),
        pytest.param(("--loader", "stateful"), MID_EPOCH, marks=pytest.mark.soak),
        pytest.param(("--loader", "generator", "--manual", "--epochs", "1"), MID_EPOCH, marks=pytest.mark.soak),
    ],
    ids=["in_an_epoch", "between_epochs", "a_loader_with_a_state", "a_generator_and_two_optimizers"],
)
def test_a_killed_run_ends_bit_identical_to_one_without_holdfast(
    tmp_path: Path, flags: tuple[str, ...], step: int
) -> None:
    kept = alone(tmp_path, *flags)
    with started(tmp_path, "killed", JOB, tmp_path / "killed", str(tmp_path / "files"), *flags) as local:
        status = at_step(local, step)
        wait_for(lambda: local.status().newest_snapshot >= step, "a snapshot to resume from")
        os.kill(status.ranks[1].pid, signal.SIGKILL)
        wait_for(lambda: local.status().generation > status.generation, "the next generation")
        ended = finish(local, tmp_path, "killed")
    assert ended.resumed_step >= step
    assert {"train_loss_epoch", "error", "val_loss"} <= logged(ended).keys()
    expect_the_same_end(tmp_path, "killed")
    assert files(tmp_path / "files") == kept


@pytest.mark.soak
def test_a_stopped_run_that_is_started_again_ends_as_one_that_was_not(tmp_path: Path) -> None:
    flags = (str(tmp_path / "files"), "--epochs", "4")
    alone(tmp_path, *flags[1:])
    with started(tmp_path, "stopped", JOB, tmp_path / "stopped", *flags, checkpoint_every=5) as local:
        at_step(local, MID_EPOCH)
        local.control.stop_run(grace_s=60)
        assert MID_EPOCH <= local.wait(timeout_s=100).newest_step < 39
    with started(tmp_path, "stopped", JOB, tmp_path / "stopped", *flags, checkpoint_every=5) as local:
        assert finish(local, tmp_path, "stopped").newest_step == 39
    expect_the_same_end(tmp_path, "stopped")


def test_a_fit_from_lightnings_own_checkpoint_has_its_steps_and_ends_as_without_holdfast(tmp_path: Path) -> None:
    run_alone(JOB, tmp_path / "first", str(tmp_path / "files"), "--epochs", "1")
    own = tmp_path / "end-of-epoch.ckpt"
    shutil.copy(next((tmp_path / "files" / "often").glob("*step=10.ckpt")), own)
    flags = ("--epochs", "2", "--resume", str(own))
    shutil.rmtree(tmp_path / "files")
    alone(tmp_path, *flags)
    with started(tmp_path, "held", JOB, tmp_path / "held", str(tmp_path / "files"), *flags) as local:
        assert finish(local, tmp_path, "held").newest_step == 19  # ten steps to an epoch, counted on
    expect_the_same_end(tmp_path, "held")


def expect_named(control: ControlClient, hang: Path, line: int) -> None:
    """Have rank 1 hang, and wait for a verdict that names it and the line.

    On a busy machine, the first verdict may come before the stack of the rank. Ranks that were restarted then hang
    again, and ranks that are observed still hang.
    """
    newest = 0

    def look() -> Verdict | None:
        nonlocal newest
        if (generation := control.status().generation) > newest:
            newest = generation
            hang.touch()
        verdicts = [one.verdict for one in control.incidents()]
        return next((verdict for verdict in verdicts if f"lightning_job.py:{line}" in verdict.message), None)

    verdict = wait_for(look, "a verdict with the line")
    assert verdict.kind == VERDICT_KIND_HUNG_COLLECTIVE
    assert list(verdict.culprits) == [1]


LINE_THAT_HANGS = (JOBS / JOB).read_text().split("# the line that hangs")[0].count("\n") + 1


@pytest.mark.parametrize(
    "line", [pytest.param([], marks=pytest.mark.soak), ["--no-line"]], ids=["by_the_line", "by_the_entry_point"]
)
def test_a_hung_rank_is_named_with_its_line_and_the_run_continues(
    tmp_path: Path, entry_points: None, line: list[str]
) -> None:
    out = tmp_path / "hung"
    with started(tmp_path, "hung", JOB, out, str(tmp_path / "files"), *line) as local:
        at_step(local, 3)
        expect_named(local.control, out / "hang", LINE_THAT_HANGS)
        (out / "hang").unlink(missing_ok=True)
        finish(local, tmp_path, "hung")
    for rank in range(RANKS):
        assert callbacks_at_the_end(out, rank) == ["LightningHoldfast"]


def callbacks_at_the_end(out: Path, rank: int) -> list[str]:
    import torch

    found: list[str] = torch.load(out / f"end-{rank}.pt", weights_only=True)["callbacks"]
    return found


@pytest.mark.parametrize(
    ("launcher", "flags", "options"),
    [
        pytest.param(TORCHRUN, [], [], marks=pytest.mark.soak),
        ((sys.executable,), ["--devices", str(RANKS)], []),
        (TORCHRUN, ["--no-line"], ["--auto"]),
    ],
    ids=["torchrun", "lightnings_own_launcher", "auto"],
)
def test_observe_names_a_hung_rank_with_its_line(
    tmp_path: Path, entry_points: None, launcher: tuple[str, ...], flags: list[str], options: list[str]
) -> None:
    out = tmp_path / "out"
    given = (str(tmp_path / "files"), "--epochs", "1000", *flags)
    with observed(tmp_path, "watched", JOB, out, *given, launcher=launcher, options=options) as control:
        ranks = at_step(control, 3).ranks
        assert len(ranks) == RANKS
        try:
            expect_named(control, out / "hang", LINE_THAT_HANGS)
        finally:
            for rank in ranks:
                os.kill(rank.pid, signal.SIGKILL)  # a rank in a collective does not answer a launcher's SIGTERM


def last_line(code: str, *arguments: str) -> str:
    """Return the last line that a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


NEW_TRAINER = """
import sys, {package}
trainer = {package}.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
print([type(one).__name__ for one in trainer.callbacks if "Holdfast" in type(one).__name__],
      sorted(name for name in sys.modules if name.startswith("holdfast")))
"""


@pytest.mark.parametrize("package", ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.soak)])
def test_the_entry_point_imports_nothing_outside_of_a_run_and_adds_one_callback_inside(
    entry_points: None, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    code = NEW_TRAINER.format(package=package)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert last_line(code) == "[] ['holdfast_lightning']"
    monkeypatch.setenv(VARIABLE, "{}")
    assert last_line(code).startswith("['LightningHoldfast'] ")


def test_without_holdfast_the_callback_leaves_the_trainer_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert last_line(WITHOUT, str(JOBS / JOB), str(tmp_path / "out"), str(tmp_path / "files")) == "[]"


WITHOUT = """
import runpy, sys, threading
import lightning
seen = []
class Look(lightning.Callback):
    def on_train_batch_end(self, trainer, *_):
        loops = (trainer, trainer.fit_loop, trainer.fit_loop.epoch_loop)
        seen.append([name for loop in loops for name in vars(loop) if callable(getattr(type(loop), name, None))])
        seen.append([one.name for one in threading.enumerate() if one.name.startswith("holdfast")])
start = lightning.Trainer.__init__
def with_look(self, *arguments, callbacks, **options):
    start(self, *arguments, callbacks=[*callbacks, Look()], **options)
lightning.Trainer.__init__ = with_look
sys.argv = [*sys.argv[1:], "--epochs", "1"]
runpy.run_path(sys.argv[0], run_name="__main__")
assert seen
print(sum(seen, []))
"""

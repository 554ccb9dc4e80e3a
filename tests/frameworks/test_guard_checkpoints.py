"""``holdfast guard`` on checkpoints that the frameworks themselves write: while they write, and afterwards."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import Result

from holdfast_checkpoint.guard.candidates import TRACKER
from holdfast_checkpoint.guard.damage import Reason
from holdfast_checkpoint.guard.examination import Examiner
from holdfast_checkpoint.guard.folder_guard import FolderGuard, GuardTimes, Judgment
from holdfast_checkpoint.guard.paced_reading import Pace
from holdfast_proto.exit_codes import ExitCode
from tests.support.framework_runs import JOBS, PATIENCE_S
from tests.support.guard_command import invoke_guard
from tests.support.programs import framework

pytestmark = [pytest.mark.frameworks, pytest.mark.system]

QUIET_S = 10.0
EXPECTED: list[list[Reason]] = [[], [], [Reason.STALE], [Reason.SHRUNK], [Reason.NON_FINITE]]
"""What is wrong with the five checkpoints of saving_job.py."""


@dataclass(frozen=True)
class Kind:
    """One way to save."""

    job: str
    """Its name in saving_job.py."""
    package: str
    names: str
    """Name of a checkpoint, by its step."""
    folder: str = "files"
    ranks: int = 1


KINDS = {
    "dcp": Kind("dcp", "torch", "step-{}", ranks=2),
    "huggingface": Kind("huggingface", "transformers", "checkpoint-{}"),
    "sharded": Kind("huggingface", "transformers", "checkpoint-{}", folder="files-sharded"),
    "lightning": Kind("lightning", "lightning", "epoch=0-step={}.ckpt"),
    "megatron": Kind("megatron", "megatron", "iter_000000{}"),
}
ALL = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True)
class Saved:
    """Checkpoints of one kind, and what a guard said that looked while they were written."""

    kind: Kind
    folder: Path
    judgments: list[Judgment]

    def name(self, step: int) -> str:
        return self.kind.names.format(step)

    def first_two(self, folder: Path) -> Path:
        """Copy the two good ones, and return the second."""
        for step in (1, 2):
            source = self.folder / self.name(step)
            if source.is_file():
                folder.mkdir(exist_ok=True)
                shutil.copy2(source, folder)
            else:
                shutil.copytree(source, folder / source.name)
        if (self.folder / TRACKER).exists():
            (folder / TRACKER).write_text("2")
        return folder / self.name(2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Saved]:
    """Have all frameworks save side by side, with a guard on each folder that misses no state in between."""
    for package in sorted({kind.package for kind in KINDS.values()}):
        if find_spec(package) is None:  # to import them all would take longer than the tests
            framework(package)
    root = tmp_path_factory.mktemp("saved")
    folders = {name: root / kind.job / kind.folder for name, kind in KINDS.items()}
    skipped_s = 0.0
    guards = {}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        guards[name] = FolderGuard(
            folder,
            Examiner(sample_bytes=None, pace=Pace()),
            GuardTimes(quiet_s=QUIET_S),
            clock=lambda: time.monotonic() + skipped_s,
        )
    found: dict[str, list[Judgment]] = {name: [] for name in KINDS}

    def look() -> None:
        for name, guard in guards.items():
            found[name] += guard.look()

    with ExitStack() as stack:
        jobs = {
            job: list(started(stack, job, root / job)) for job in dict.fromkeys(each.job for each in KINDS.values())
        }
        while any(process.poll() is None for processes in jobs.values() for process in processes):
            look()
            time.sleep(0.05)
        for job, processes in jobs.items():
            assert [process.returncode for process in processes] == [0] * len(processes), log(root / job)
    look()
    skipped_s = QUIET_S
    look()
    return {name: Saved(kind, folders[name], found[name]) for name, kind in KINDS.items()}


def started(stack: ExitStack, job: str, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the ranks of a job, which end with the stack at the latest."""
    ranks = max(kind.ranks for kind in KINDS.values() if kind.job == job)
    for rank in range(ranks):
        output = stack.enter_context((folder / f"rank-{rank}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, str(JOBS / "saving_job.py"), job, str(folder / "files")],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
            },
            stdout=output,
            stderr=output,
        )
        stack.callback(process.wait, PATIENCE_S)
        stack.callback(process.kill)
        yield process


def log(folder: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("rank-*.log")))


def guard_once(folder: Path, *flags: str) -> Result:
    return invoke_guard(folder, "--once", "--quiet-s", "0", *flags)


def last_line(result: Result) -> str:
    return result.stdout.splitlines()[-1]


@ALL
def test_a_guard_that_looks_all_the_time_judges_each_once_and_rightly(saved: dict[str, Saved], kind: str) -> None:
    here = saved[kind]
    assert [each.step for each in here.judgments] == [1, 2, 3, 4, 5]
    assert [[finding.reason for finding in each.findings] for each in here.judgments] == EXPECTED


@ALL
def test_the_command_says_the_same_and_names_the_newest_good_one(saved: dict[str, Saved], kind: str) -> None:
    here = saved[kind]
    result = guard_once(here.folder)
    assert result.exit_code == ExitCode.FAILED
    assert last_line(result) == (
        f"the newest complete checkpoint {here.name(5)} is bad: the newest good one is {here.name(2)}"
    )
    found = [json.loads(line) for line in guard_once(here.folder, "--json", "--full").stdout.splitlines()]
    assert [[finding["reason"] for finding in one["findings"]] for one in found] == EXPECTED
    assert [one["newest_good"] for one in found] == [here.name(step) for step in (1, 2, 2, 2, 2)]


@ALL
def test_one_that_is_cut_off_is_bad_and_one_that_is_not_finished_is_not_judged(
    saved: dict[str, Saved], kind: str, tmp_path: Path
) -> None:
    here = saved[kind]
    second = here.first_two(tmp_path / "files")
    assert guard_once(tmp_path / "files").exit_code == ExitCode.SUCCESS
    data = largest_file(second)
    os.truncate(data, data.stat().st_size // 2)
    if second.is_dir():  # Lightning's single file has no mark apart from its own end
        cut_off = guard_once(tmp_path / "files")
        assert cut_off.exit_code == ExitCode.FAILED
        assert f"{here.name(2)}: BAD: damaged: " in cut_off.stdout
        assert data.name in cut_off.stdout
        MARKS[kind](second)
    unfinished = guard_once(tmp_path / "files")
    assert unfinished.exit_code == ExitCode.SUCCESS
    assert f"{here.name(2)}: incomplete: " in unfinished.stdout
    assert last_line(unfinished) == f"the newest good one is {here.name(1)}, which is the newest complete one"


def largest_file(place: Path) -> Path:
    files = [place] if place.is_file() else [path for path in place.iterdir() if path.suffix != ".json"]
    return max((path for path in files if not path.name.startswith(".")), key=lambda path: path.stat().st_size)


MARKS: dict[str, Callable[[Path], object]] = {
    "dcp": lambda place: (place / ".metadata").unlink(),
    "huggingface": lambda place: (place / "trainer_state.json").unlink(),
    "sharded": lambda place: (place / "model.safetensors.index.json").unlink(),
    "megatron": lambda place: (place.parent / TRACKER).write_text("1"),
}
"""Takes away what each framework writes last."""


def test_megatron_without_its_own_metadata_is_not_finished(saved: dict[str, Saved], tmp_path: Path) -> None:
    second = saved["megatron"].first_two(tmp_path / "files")
    (tmp_path / "files" / TRACKER).unlink()
    assert guard_once(tmp_path / "files").exit_code == ExitCode.SUCCESS
    (second / "metadata.json").unlink()  # the torch index is there: Megatron still refuses to load this
    assert f"{second.name}: incomplete: metadata.json is missing" in guard_once(tmp_path / "files").stdout

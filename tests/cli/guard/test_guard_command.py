"""``holdfast guard`` as people and scripts use it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from typer.testing import Result

from dashboards.catalogue import differences
from holdfast_checkpoint.guard.examination import Examiner
from holdfast_checkpoint.guard.folder_guard import FolderGuard
from holdfast_checkpoint.guard.guard_metrics import GuardCollector, GuardNumbers
from holdfast_checkpoint.guard.paced_reading import Pace
from holdfast_proto.exit_codes import ExitCode
from tests.support.foreign_checkpoints import TinyTraining, save_huggingface
from tests.support.guard_command import invoke_guard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good checkpoint, and a stale one after it."""
    training = TinyTraining()
    for step in (10, 20):
        save_huggingface(tmp_path, step, training)
    return tmp_path


def once(folder: Path, *arguments: str) -> Result:
    return invoke_guard(folder, "--once", "--quiet-s", "0", *arguments)


def test_the_newest_bad_one_fails_and_the_newest_good_one_is_named(folder: Path) -> None:
    result = once(folder)
    assert result.exit_code == ExitCode.FAILED
    first, second, last = result.stdout.splitlines()
    assert first.startswith("checkpoint-10: good · 18 tensors and objects")
    stale = "stale: its model weights are byte-identical to those of checkpoint-10"
    assert second == f"checkpoint-20: BAD: {stale} · the newest good one is checkpoint-10"
    assert last == "the newest complete checkpoint checkpoint-20 is bad: the newest good one is checkpoint-10"


def test_good_ones_have_code_0_and_json_has_an_object_for_each(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint-20")
    result = once(folder, "--json", "--full")
    assert result.exit_code == ExitCode.SUCCESS
    (found,) = map(json.loads, result.stdout.splitlines())
    assert (found["outcome"], found["step"], found["newest_good"]) == ("good", 10, "checkpoint-10")
    assert found["read_bytes"] > found["weight_bytes"] > 0


def test_a_folder_without_checkpoints_and_a_missing_one_have_the_code_of_missing_files(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        result = once(folder)
        assert (result.exit_code, result.stderr.count("\n")) == (ExitCode.CHECKPOINTS_UNAVAILABLE, 1)
        assert str(folder) in result.stderr


def test_a_first_checkpoint_that_is_not_finished_fails(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoint-20")
    (folder / "checkpoint-10" / "trainer_state.json").unlink()
    result = once(folder, "--incomplete-after-s", "0")
    assert result.exit_code == ExitCode.FAILED
    line, last = result.stdout.splitlines()
    assert line.startswith("checkpoint-10: incomplete: trainer_state.json is missing")
    assert last == f"{folder}: no complete checkpoint could be read"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("s3://bucket/x",), "is a URL"),
        ((__file__,), "is a file: name the folder"),
        ((".", "--once", "--metrics-port", "0"), "--metrics-port has no effect with --once"),
        ((".", "--endpoint", "x"), "set --metrics-port too"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    result = invoke_guard(*arguments)
    assert result.exit_code == ExitCode.CONFIGURATION
    assert reason in result.stderr.replace("\n", " ")


def test_nothing_in_the_folder_is_changed(folder: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*"))

    before = state()
    once(folder, "--full")
    assert state() == before


def test_the_metrics_are_those_of_the_catalogue(folder: Path) -> None:
    numbers = GuardNumbers(str(folder))
    registry = CollectorRegistry()
    registry.register(GuardCollector(numbers))
    assert differences("guard", generate_latest(registry).decode()) == []
    followed = FolderGuard(folder, Examiner(sample_bytes=1 << 20, pace=Pace()), wall_clock=lambda: 1e12)
    for judgment in followed.look():
        numbers.count(judgment)
    numbers.look_ended(followed)
    text = generate_latest(registry).decode()
    assert differences("guard", text) == []
    label = f'{{directory="{folder}"}}'
    for name, value in (("newest_good_step", 10.0), ("newest_step", 20.0), ("newest_is_good", 0.0)):
        assert f"holdfast_guard_{name}{label} {value}" in text
    assert f'holdfast_guard_bad_checkpoints_total{{directory="{folder}",reason="stale"}} 1.0' in text


def test_the_command_lets_the_run_have_the_cores_and_disks_first() -> None:
    script = (
        "import os, psutil; from holdfast_cli.commands.services import guard_service; guard_service._yield_to_others();"
        "print(os.getpriority(os.PRIO_PROCESS, 0), psutil.Process().ionice().ioclass == psutil.IOPRIO_CLASS_IDLE)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["10", "True"]

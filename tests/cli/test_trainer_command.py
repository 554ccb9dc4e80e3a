from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast_cli.main import app
from holdfast_cli.trainer_command import checked_configuration

TRAINER = ("python", "-u", "-m", "holdfast_trainer")


def run(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ("run", "--directory", str(directory), *arguments))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--parallel.dp", "2"), "dp x parallel.cp x parallel.tp x parallel.pp is 2, but 4 ranks were started"),
        (("--parallel.dp=4", "--parallel.zero", "7"), "parallel.zero: Input should be less than or equal to 3"),
        (("--config", "no.toml"), "--config no.toml: No such file or directory"),
        (("--model.dims=3",), "--model.dims=3"),
    ],
)
def test_a_wrong_configuration_of_our_trainer_is_refused_before_anything_starts(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    directory = tmp_path / "runs"
    result = run(directory, "--ranks", "4", "--", *TRAINER, *flags)
    assert result.exit_code == 78
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not directory.exists()


def test_our_trainer_is_recognised_by_its_module() -> None:
    settings = checked_configuration((*TRAINER, "--parallel.tp", "2"), ranks=2)
    assert settings is not None
    assert settings.parallel.tp == 2


@pytest.mark.parametrize(
    "command", [("python", "train.py"), ("python", "-m", "my_trainer", "holdfast_trainer"), ("x",)]
)
def test_the_configuration_of_other_trainers_is_not_looked_at(command: tuple[str, ...]) -> None:
    assert checked_configuration(command, ranks=2) is None


def test_dry_run_tries_the_layout_and_starts_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "runs"
    result = run(directory, "--dry-run", "--ranks", "2", "--", *TRAINER, "--parallel.dp", "2")
    assert result.exit_code == 0, result.stderr
    assert "2 ranks, 1 stage" in result.stdout
    assert "every rank took a step" in result.stdout
    assert not directory.exists()


def test_dry_run_of_another_trainer_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path / "runs", "--dry-run", "--", "python", "train.py")
    assert result.exit_code == 78
    assert result.stderr.count("\n") == 1
    assert "--dry-run needs a command with -m holdfast_trainer" in result.stderr

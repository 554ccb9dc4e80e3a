from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast_cli.errors import ConfigurationError
from holdfast_cli.main import app
from holdfast_cli.trainer_command import check_configuration

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


@pytest.mark.parametrize(
    "command", [("python", "train.py"), ("python", "-m", "my_trainer", "holdfast_trainer"), ("x",)]
)
def test_the_configuration_of_other_trainers_is_not_checked(command: tuple[str, ...]) -> None:
    wrong = ("--parallel.tp", "-7")
    check_configuration((*command, *wrong), ranks=2)
    with pytest.raises(ConfigurationError, match=r"parallel\.tp"):
        check_configuration((*TRAINER, *wrong), ranks=2)

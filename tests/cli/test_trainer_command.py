from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast_cli.errors import SettingsError
from holdfast_cli.main import app
from holdfast_cli.trainer_command import check_configuration, check_published
from holdfast_trainer import start_checks

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
        (("--parallel.dp=4", "--data.source=/no/such"), "data.source /no/such: no such file or folder"),
        (("--parallel.dp=4", "--data.validation=/no/text"), "data.validation /no/text: no such file or folder"),
        (("--parallel.dp=4", "--data.tokenizer=/no/t.json"), "data.tokenizer /no/t.json: No such file"),
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
    check_configuration((*command, *wrong), ranks=2, is_here=True)
    with pytest.raises(SettingsError, match=r"parallel\.tp"):
        check_configuration((*TRAINER, *wrong), ranks=2, is_here=True)


def test_a_command_that_no_rank_could_start_is_refused_before_anything_starts(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    result = run(directory, "--", "python", str(tmp_path / "missing.py"))
    assert result.exit_code == 78
    assert result.stderr.startswith(f"holdfast: {tmp_path}/missing.py cannot be started: no such file")
    assert result.stderr.count("\n") == 1
    assert not directory.exists()


def test_a_launcher_is_refused_with_the_command_to_use(tmp_path: Path) -> None:
    directory = tmp_path / "runs"
    result = run(directory, "--", "torchrun", "--nproc-per-node", "4", "train.py", "9")
    assert result.exit_code == 78
    assert "`holdfast observe -- torchrun --nproc-per-node 4 train.py 9`" in result.stderr
    assert "`holdfast run --ranks N -- python train.py 9`" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not directory.exists()


def test_a_published_command_may_exist_on_the_nodes_alone() -> None:
    check_published(("python", "missing.py"))
    with pytest.raises(SettingsError, match=r"`holdfast publish --ranks-per-node N -- python train\.py`"):
        check_published(("torchrun", "train.py"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--distributed.device=cuda",), "distributed.device is cuda, but this machine has no CUDA device"),
        (("--precision.fp8=true", "--precision.compute=bf16"), "precision.fp8 needs a GPU, but this machine has none"),
    ],
)
def test_a_gpu_that_this_machine_lacks_is_refused_where_the_ranks_are_to_run(
    flags: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_checks, "has_gpu", lambda: False)
    with pytest.raises(SettingsError, match=message):
        check_configuration((*TRAINER, *flags), ranks=1, is_here=True)
    check_configuration((*TRAINER, *flags, "--data.source=/on/the/nodes"), ranks=1, is_here=False)
    monkeypatch.setattr(start_checks, "has_gpu", lambda: True)
    check_configuration((*TRAINER, *flags), ranks=1, is_here=True)

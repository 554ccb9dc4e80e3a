from pathlib import Path

import pytest

from holdfast_cli.errors import SettingsError
from holdfast_cli.trainer_command import check_configuration, check_published
from holdfast_trainer import start_checks
from tests.cli.conftest import holdfast

TRAINER = ("python", "-u", "-m", "holdfast_trainer")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((*TRAINER, "--parallel.dp", "2"), "parallel.tp x parallel.pp is 2, but 4 ranks were started"),
        ((*TRAINER, "--parallel.dp=4", "--parallel.zero", "7"), "zero: Input should be less than or equal to 3"),
        ((*TRAINER, "--config", "no.toml"), "--config no.toml: No such file or directory"),
        ((*TRAINER, "--model.dims=3"), "--model.dims=3"),
        ((*TRAINER, "--parallel.dp=4", "--data.source=/no"), "data.source /no: no such file or folder"),
        ((*TRAINER, "--parallel.dp=4", "--data.validation=/no"), "data.validation /no: no such file or folder"),
        ((*TRAINER, "--parallel.dp=4", "--data.tokenizer=/no/t.json"), "data.tokenizer /no/t.json: No such file"),
        (("python", "missing.py"), "holdfast: missing.py cannot be started: no such file"),
        (("torchrun", "--nproc-per-node", "4", "x.py", "9"), "holdfast observe -- torchrun --nproc-per-node 4 x.py 9`"),
        (("torchrun", "--nproc-per-node", "4", "x.py", "9"), "`holdfast run --ranks N -- python x.py 9`"),
    ],
)
def test_what_no_rank_could_start_is_refused_before_anything_starts(
    tmp_path: Path, command: tuple[str, ...], message: str
) -> None:
    directory = tmp_path / "runs"
    result = holdfast("run", "--directory", directory, "--ranks", 4, "--", *command)
    assert result.exit_code == 78
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert not directory.exists()


@pytest.mark.parametrize(
    "command", [("python", "train.py"), ("python", "-m", "my_trainer", "holdfast_trainer"), ("x",)]
)
def test_the_configuration_of_other_trainers_is_not_checked(command: tuple[str, ...]) -> None:
    wrong = ("--parallel.tp", "-7")
    check_configuration((*command, *wrong), ranks=2, is_here=True)
    with pytest.raises(SettingsError, match=r"parallel\.tp"):
        check_configuration((*TRAINER, *wrong), ranks=2, is_here=True)


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

from pathlib import Path

import pytest
from pydantic import ValidationError

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig, load

DEMO = Path(__file__).parents[2] / "trainer" / "holdfast_trainer" / "configs" / "demo.toml"

WRONG = [
    (["--model.dims", "64"], "error parsing CLI: unrecognized arguments: --model.dims 64"),
    (
        ["--model.dim", "wide"],
        "model.dim: Input should be a valid integer, unable to parse string as an integer, not 'wide'",
    ),
    (["--model.dim", "0"], "model.dim: Input should be greater than 0, not '0'"),
    (["--distributed.device", "tpu"], "distributed.device: Input should be 'auto', 'cpu' or 'cuda', not 'tpu'"),
    (["--config", "no.toml"], "--config no.toml: No such file or directory"),
    (
        ["--model.dim", "65"],
        "model.dim is 65, which model.heads = 4 does not divide: change model.dim or model.heads",
    ),
    (
        ["--model.kv_heads", "3"],
        "model.heads is 4, which model.kv_heads = 3 does not divide: change model.heads or model.kv_heads",
    ),
    (
        ["--model.dim", "20"],
        "model.dim / model.heads is 5, but rotary heads have an even width: change model.dim or model.heads",
    ),
    (
        ["--parallel.tp", "4"],
        "model.kv_heads is 2, which parallel.tp = 4 does not divide: change model.kv_heads or parallel.tp",
    ),
    (
        ["--parallel.tp", "2", "--model.hidden", "191"],
        "model.hidden is 191, which parallel.tp = 2 does not divide: change model.hidden or parallel.tp",
    ),
    (
        [
            "--parallel.tp",
            "3",
            "--model.heads",
            "3",
            "--model.kv_heads",
            "3",
            "--model.dim",
            "66",
            "--data.sequence",
            "9",
        ],
        "parallel.tp is 3, which does not divide 256 tokens: change parallel.tp",
    ),
    (
        ["--parallel.tp", "2", "--data.sequence", "127"],
        "data.sequence is 127, which parallel.tp = 2 does not divide: "
        "change data.sequence or set parallel.sequence_parallel = false",
    ),
    (
        ["--parallel.pp", "8", "--parallel.microbatches", "8"],
        "model.layers is 4, too few for parallel.pp = 8: change either",
    ),
    (
        ["--parallel.pp", "2"],
        "parallel.microbatches is 1, but 2 pipeline stages need as many: raise parallel.microbatches",
    ),
    (
        ["--parallel.dp", "2", "--parallel.microbatches", "3"],
        "train.global_batch is 8, not a multiple of parallel.dp x parallel.microbatches = 6: change train.global_batch",
    ),
    (
        ["--parallel.pp", "2", "--parallel.microbatches", "2", "--model.tied", "true"],
        "model.tied needs embedding and head on one stage: set model.tied = false or parallel.pp = 1",
    ),
    (
        ["--parallel.dp", "4"],
        "parallel.dp x parallel.tp x parallel.pp is 4, but 8 ranks were started: change [parallel] or --ranks",
    ),
]


@pytest.mark.parametrize(("flags", "message"), WRONG, ids=[" ".join(flags) for flags, _ in WRONG])
def test_wrong_flag_is_refused_in_one_line_that_names_it(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load(flags, world_size=8)
    assert str(refusal.value) == message


def test_unknown_keys_in_the_file_are_named_one_per_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[model]\ndims = 64\n[extra]\n")
    with pytest.raises(ConfigurationError) as refusal:
        load(["--config", str(path)], world_size=1)
    assert str(refusal.value).splitlines() == [
        "model.dims: unknown key: remove it or correct its name (--help lists them)",
        "extra: unknown key: remove it or correct its name (--help lists them)",
    ]


def test_several_cross_checks_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load(["--model.dim", "65", "--parallel.pp", "2"], world_size=2)
    assert [line.split(" ")[0] for line in str(refusal.value).splitlines()] == ["model.dim", "parallel.microbatches"]


def test_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[model\n")
    with pytest.raises(ConfigurationError, match=r"^--config .*wrong\.toml: not a TOML file: "):
        load(["--config", str(path)], world_size=1)


def test_flags_override_the_file_and_leave_the_rest_of_its_table() -> None:
    config = load(["--config", str(DEMO), "--train.steps", "7", "--model.dim=32"], world_size=8)
    assert (config.train.steps, config.train.validate_every) == (7, 40)
    assert (config.model.dim, config.model.hidden) == (32, 192)
    assert (config.parallel.dp, config.parallel.tp, config.parallel.pp) == (2, 2, 2)


def test_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL__DIM", "32")
    monkeypatch.setenv("MODEL", '{"dim": 32}')
    assert load([], world_size=1) == TrainerConfig()


def test_configuration_cannot_be_changed() -> None:
    config = load([], world_size=1)
    with pytest.raises(ValidationError):
        config.model.dim = 32


def test_help_shows_every_flag_with_its_doc(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(["--help"], world_size=1)
    shown = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    assert "--config FILE" in shown
    assert "--parallel.microbatches int Parts in which each data-parallel rank works off" in shown

from pathlib import Path

import pytest
from pydantic import ValidationError

from holdfast_hooks import ConfigurationError
from holdfast_trainer.config import TrainerConfig, load, resized

DEMO = Path(__file__).parents[2] / "trainer" / "holdfast_trainer" / "configs" / "demo.toml"

INTERLEAVED = "--parallel.pp 2 --parallel.schedule interleaved-1f1b"
ZERO_BUBBLE = "--parallel.pp 2 --parallel.microbatches 2 --parallel.schedule zero-bubble"
WRONG = {
    "--model.dims 64": "error parsing CLI: unrecognized arguments: --model.dims 64",
    "--model.dim wide": "model.dim: Input should be a valid integer, unable to parse string as an integer, not 'wide'",
    "--model.dim 0": "model.dim: Input should be greater than 0, not '0'",
    "--distributed.device tpu": "distributed.device: Input should be 'auto', 'cpu' or 'cuda', not 'tpu'",
    "--config no.toml": "--config no.toml: No such file or directory",
    "--model.dim 65": "model.dim is 65, which model.heads = 4 does not divide: change model.dim or model.heads",
    "--model.kv_heads 3": "model.heads is 4, which model.kv_heads = 3 does not divide: "
    "change model.heads or model.kv_heads",
    "--model.dim 20": "model.dim / model.heads is 5, but rotary heads have an even width: "
    "change model.dim or model.heads",
    "--model.head_dim 7": "model.head_dim is 7, but rotary heads have an even width: change it",
    "--model.rope_scaling llama3 --model.rope_low_frequency 4": "model.rope_low_frequency is 4.0, "
    "not below model.rope_high_frequency = 4.0: change either",
    "--data.document_end 256": "data.document_end is 256, but model.vocabulary is 256: give an id that the model knows",
    "--parallel.tp 4": "model.kv_heads is 2, which parallel.tp = 4 does not divide: "
    "change model.kv_heads or parallel.tp",
    "--parallel.tp 2 --model.hidden 191": "model.hidden is 191, which parallel.tp = 2 does not divide: "
    "change model.hidden or parallel.tp",
    "--parallel.tp 3 --model.heads 3 --model.kv_heads 3 --model.dim 66 --data.sequence 9": "model.vocabulary is 256, "
    "which parallel.tp = 3 does not divide: change model.vocabulary or parallel.tp",
    "--parallel.tp 2 --data.sequence 127": "data.sequence / parallel.cp is 127, which parallel.tp = 2 does not divide: "
    "change data.sequence or set parallel.sequence_parallel = false",
    "--parallel.pp 8 --parallel.microbatches 8": "model.layers is 4, too few for 8 pipeline stages (parallel.pp = 8, "
    "1 each under 1f1b): change model.layers or parallel.pp",
    "--parallel.pp 2": "parallel.microbatches is 1, but 2 pipeline ranks need as many: raise parallel.microbatches",
    "--parallel.dp 2 --parallel.microbatches 3": "train.global_batch is 8, "
    "not a multiple of parallel.dp x parallel.microbatches = 6: change train.global_batch",
    "--parallel.pp 2 --parallel.microbatches 2 --model.tied true": "model.tied needs embedding and head on one stage: "
    "set model.tied = false or parallel.pp = 1",
    "--model.vocabulary 255": "model.vocabulary is 255, too small for 256 byte values: raise it to 256",
    "--parallel.zero 4": "parallel.zero: Input should be less than or equal to 3, not '4'",
    "--parallel.dp 4 --parallel.dp_shard 3": "parallel.dp is 4, which parallel.dp_shard = 3 does not divide: "
    "change parallel.dp or parallel.dp_shard",
    "--parallel.dp 4 --parallel.dp_shard 2 --parallel.zero 0": "parallel.zero is 0, which shards nothing, "
    "but parallel.dp_shard is 2: change either",
    "--model.experts 2 --model.experts_per_token 3": "model.experts_per_token is 3, but there are 2 experts: "
    "lower model.experts_per_token",
    "--parallel.ep 2 --parallel.dp 2": "parallel.ep is 2, but the model has no experts: "
    "set model.experts or parallel.ep = 1",
    "--parallel.ep 2 --parallel.dp 2 --model.experts 3": "model.experts is 3, which parallel.ep = 2 does not divide: "
    "change model.experts or parallel.ep",
    "--parallel.ep 2 --parallel.dp 2 --parallel.dp_shard 1 --model.experts 4": "parallel.dp_shard x parallel.cp is 1, "
    "which parallel.ep = 2 does not divide: change parallel.dp_shard x parallel.cp or parallel.ep",
    "--parallel.cp 2 --data.sequence 130": "data.sequence is 130, which 2 x parallel.cp = 4 does not divide: "
    "change data.sequence or 2 x parallel.cp",
    "--parallel.pp 4 --parallel.microbatches 4 --parallel.schedule zero-bubble": "model.layers is 4, "
    "too few for 8 pipeline stages (parallel.pp = 4, 2 each under zero-bubble): change model.layers or parallel.pp",
    f"{INTERLEAVED} --parallel.microbatches 3 --train.global_batch 3": "parallel.microbatches is 3, "
    "which parallel.pp = 2 does not divide: change parallel.microbatches or parallel.pp",
    f"{ZERO_BUBBLE} --memory.compile true": "memory.compile needs a backward pass in one piece, "
    "but parallel.schedule = zero-bubble splits it: set memory.compile = false or change parallel.schedule",
    f"{ZERO_BUBBLE} --memory.checkpointing selective": "memory.checkpointing = selective needs a backward pass in one "
    'piece, but parallel.schedule = zero-bubble splits it: set it to "full" or change parallel.schedule',
    "--precision.fp8 true --distributed.device cuda": "precision.fp8 rounds bf16 activations, "
    'but precision.compute is fp32: set precision.compute = "bf16"',
    "--precision.fp8 true --precision.compute bf16 --distributed.device cpu": "precision.fp8 needs a GPU, "
    'but distributed.device is "cpu": change either',
    "--parallel.dp 4": "parallel.dp x parallel.cp x parallel.tp x parallel.pp is 4, but 8 ranks were started: "
    "change [parallel] or --ranks",
}
"""Flags, and the line that refuses them."""


@pytest.mark.parametrize(("flags", "message"), WRONG.items(), ids=WRONG)
def test_wrong_flag_is_refused_in_one_line_that_names_it(flags: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        load(flags.split(), world_size=8)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("flags", "full", "world_size", "expected"),
    [
        # dp, microbatches and the samples of each
        ("--parallel.dp 3 --parallel.microbatches 2 --train.global_batch 12", 3, 2, (2, 3, 2)),
        ("--parallel.dp 3 --parallel.microbatches 3 --train.global_batch 9", 3, 2, (2, 5, 1)),
        ("--parallel.dp 3 --parallel.microbatches 3 --train.global_batch 9", 3, 1, (1, 9, 1)),
        ("--parallel.dp 4 --parallel.dp_shard 2 --parallel.tp 2 --parallel.microbatches 2", 8, 4, (2, 4, 1)),
        (f"{INTERLEAVED} --parallel.dp 3 --parallel.microbatches 2 --train.global_batch 6", 6, 4, (2, 4, 1)),
        ("--parallel.dp 2 --parallel.microbatches 2", 2, 2, (2, 2, 2)),
    ],
)
def test_fewer_replicas_compute_the_same_global_batch_in_more_microbatches(
    flags: str, full: int, world_size: int, expected: tuple[int, int, int]
) -> None:
    config = load(flags.split(), world_size=full)
    smaller = resized(config, world_size)
    parallel = smaller.parallel
    assert (parallel.dp, parallel.microbatches, smaller.microbatch_samples) == expected
    assert parallel.ranks == world_size
    assert smaller.microbatch_samples <= config.microbatch_samples
    assert smaller.train.global_batch == config.train.global_batch


@pytest.mark.parametrize(
    ("flags", "full", "replica_ranks", "message"),
    [
        (
            "--parallel.dp 3 --parallel.tp 2 --train.global_batch 3",
            6,
            2,
            "parallel.cp x parallel.tp x parallel.pp is 2, which does not divide the 3 ranks that were started "
            "without the missing nodes: change [parallel] or the ranks of a node",
        ),
        (
            "--parallel.dp 4 --parallel.dp_shard 2",
            4,
            2,
            "parallel.cp x parallel.tp x parallel.pp x parallel.dp_shard is 2, which does not divide the 3 ranks that "
            "were started without the missing nodes: change [parallel] or the ranks of a node",
        ),
        (
            "--parallel.dp 4 --model.experts 4",
            4,
            None,
            "model.experts is 4, and a model with experts needs all 4 ranks, but 3 were started: start the missing "
            "nodes, or set model.experts = 0",
        ),
    ],
)
def test_a_world_that_the_layout_cannot_have_is_refused(
    flags: str, full: int, replica_ranks: int | None, message: str
) -> None:
    config = load(flags.split(), world_size=full)
    assert config.replica_ranks == replica_ranks
    with pytest.raises(ConfigurationError) as refusal:
        resized(config, 3)
    assert str(refusal.value) == message


def test_nothing_sharded_lets_experts_borrow_from_all_data_parallel_ranks() -> None:
    flags = ["--parallel.ep", "4", "--parallel.dp", "4", "--parallel.zero", "0", "--model.experts", "4"]
    assert load(flags, world_size=4).parallel.ep == 4


def test_unknown_keys_in_the_file_are_named_one_per_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[model]\ndims = 64\n[extra]\n")
    with pytest.raises(ConfigurationError) as refusal:
        load(["--config", str(path)], world_size=1)
    assert str(refusal.value).splitlines() == [
        "model.dims: unknown key: remove it or correct its name (--help lists them)",
        "extra: unknown key: remove it or correct its name (--help lists them)",
    ]


def test_several_cross_checks_are_reported_together() -> None:
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
    assert "--parallel.microbatches int Number of parts in which each dp rank computes" in shown

import pytest

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.config_sections import ModelConfig, ParallelConfig
from holdfast_trainer.model.stages import balanced_cut, block_cost, head_cost, held_stages, stage_layers, stage_ranks


@pytest.mark.parametrize(
    ("costs", "parts", "expected"),
    [
        ([1, 1, 1, 1], 1, [4]),
        ([1, 1, 1, 1], 2, [2, 2]),
        ([1, 1, 1, 1, 4], 2, [4, 1]),
        ([4, 1, 1, 1, 1], 2, [1, 4]),
        ([1, 1, 1, 1, 1, 1, 1, 3], 4, [2, 2, 3, 1]),
        ([1, 1, 1, 9], 3, [1, 2, 1]),
        ([5, 1, 1], 3, [1, 1, 1]),
    ],
)
def test_largest_part_is_as_small_as_can_be(costs: list[int], parts: int, expected: list[int]) -> None:
    cut = balanced_cut(costs, parts=parts)
    assert [len(part) for part in cut] == expected
    assert [index for part in cut for index in part] == list(range(len(costs)))


def configured(schedule: str, *, pp: int, layers: int, vocabulary: int = 256) -> TrainerConfig:
    model = ModelConfig(dim=32, layers=layers, hidden=64, vocabulary=vocabulary)
    parallel = {"pp": pp, "schedule": schedule, "microbatches": pp}
    return TrainerConfig.model_validate({"model": model, "parallel": parallel, "train": {"global_batch": pp}})


def test_head_takes_the_place_of_blocks() -> None:
    config = configured("1f1b", pp=2, layers=8, vocabulary=1024)
    assert 2 < head_cost(config.model) / block_cost(config.model, config.data.sequence) < 4
    assert stage_layers(config) == [range(5), range(5, 8)]


def test_experts_that_are_not_picked_cost_nothing() -> None:
    dense, sparse = ModelConfig(), ModelConfig(experts=8, experts_per_token=1)
    assert block_cost(sparse, 128) == block_cost(dense, 128) + 8 * dense.dim


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("gpipe", [0, 1, 2]),
        ("1f1b", [0, 1, 2]),
        ("interleaved-1f1b", [0, 1, 2, 0, 1, 2]),
        ("zero-bubble", [0, 1, 2, 2, 1, 0]),
    ],
)
def test_ranks_hold_the_stages_that_the_schedule_gives_them(schedule: str, expected: list[int]) -> None:
    config = configured(schedule, pp=3, layers=12)
    assert stage_ranks(config.parallel) == expected
    held = [held_stages(config, rank) for rank in range(3)]
    assert [[stage.index for stage in stages] for stages in held] == [
        [index for index, rank in enumerate(expected) if rank == pp_index] for pp_index in range(3)
    ]
    assert [stage.index for stages in held for stage in stages if stage.is_first] == [0]
    assert [stage.index for stages in held for stage in stages if stage.is_last] == [len(expected) - 1]
    layers = sorted(layer for stages in held for stage in stages for layer in stage.layers)
    assert layers == list(range(12))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"])
def test_one_rank_has_one_stage(schedule: str) -> None:
    assert stage_ranks(ParallelConfig.model_validate({"schedule": schedule})) == [0]

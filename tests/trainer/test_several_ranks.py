"""Precision and memory options in worlds of several ranks, and the hooks' findings about such ranks."""

from typing import Any

import pytest

from tests.support.programs import package
from tests.trainer.conftest import RunRanks
from tests.trainer.layouts import OPTIMIZER

pytestmark = pytest.mark.system

SMALL = {"dim": 32, "layers": 4, "heads": 4, "kv_heads": 2, "hidden": 64}
EXPERTS = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 32, "experts": 4}
SCALED = {"compute": "fp16", "loss_scale": 256.0}


@pytest.mark.gate
@pytest.mark.safety
@pytest.mark.parametrize(
    "parallel",
    [
        {"dp": 2, "pp": 2, "microbatches": 2},
        {"pp": 2, "tp": 2, "schedule": "zero-bubble", "microbatches": 4},
        {"dp": 4, "dp_shard": 2, "zero": 2, "microbatches": 2},
    ],
)
def test_overflow_on_one_rank_skips_exactly_that_step_on_all(run_ranks: RunRanks, parallel: dict[str, Any]) -> None:
    run_ranks("overflow", ranks=4, model=SMALL, parallel=parallel, precision=SCALED)


def test_overflow_skips_the_step_of_experts_too(run_ranks: RunRanks) -> None:
    run_ranks("overflow", ranks=2, model=EXPERTS, parallel={"dp": 2, "ep": 2}, precision=SCALED)


@pytest.mark.parametrize(
    ("parallel", "memory"),
    [
        ({"dp": 2, "tp": 2}, {"checkpointing": "selective", "offload": "optimizer"}),
        ({"dp": 2, "tp": 2}, {"checkpointing": "full", "offload": "parameters"}),
        ({"pp": 2, "dp": 2, "microbatches": 2}, {"checkpointing": "selective", "offload": "parameters"}),
    ],
)
def test_memory_options_do_not_change_a_bit(
    run_ranks: RunRanks, parallel: dict[str, Any], memory: dict[str, Any]
) -> None:
    run_ranks("memory", ranks=4, model=SMALL, parallel=parallel, memory=memory)


@pytest.mark.parametrize(
    ("ranks", "samples", "parallel"),
    [
        (2, 12, {"zero": 0, "microbatches": 2}),  # 6 and 6 samples
        (2, 12, {"zero": 3, "microbatches": 2}),
        (2, 9, {"zero": 3, "microbatches": 3}),  # 5 and 4 samples in 5 microbatches
        (4, 9, {"tp": 2, "zero": 0, "microbatches": 3}),
        (4, 6, {"pp": 2, "schedule": "interleaved-1f1b", "microbatches": 2}),  # 3 and 3 in 4
    ],
)
def test_two_of_three_replicas_compute_what_one_plain_process_computes(
    run_ranks: RunRanks, ranks: int, samples: int, parallel: dict[str, Any]
) -> None:
    train = {"global_batch": samples}
    run_ranks("resized", ranks=ranks, model=SMALL, parallel={"dp": 3, **parallel}, train=train, optimizer=OPTIMIZER)


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_checkpointing_does_not_change_a_bit_of_experts(run_ranks: RunRanks, checkpointing: str) -> None:
    run_ranks("memory", ranks=2, model=EXPERTS, parallel={"dp": 2, "ep": 2}, memory={"checkpointing": checkpointing})


def test_fp8_composes_with_tensor_parallelism_and_sharding(run_ranks: RunRanks) -> None:
    package("torchao")
    precision = {"compute": "bf16", "fp8": True}
    run_ranks("fp8", ranks=4, model=SMALL, parallel={"dp": 2, "tp": 2}, precision=precision)


@pytest.mark.parametrize(
    "parallel",
    [
        {"dp": 2, "pp": 2, "zero": 0, "microbatches": 2},
        {"dp": 4, "dp_shard": 2, "zero": 2},  # HSDP: each shard has one copy
        {"pp": 2, "tp": 2, "schedule": "zero-bubble", "microbatches": 4},
    ],
)
def test_a_flipped_bit_and_the_origin_of_a_bad_gradient_are_found_and_nothing_else(
    run_ranks: RunRanks, parallel: dict[str, Any]
) -> None:
    run_ranks("watched", ranks=4, model=SMALL, parallel=parallel)


@pytest.mark.gate
@pytest.mark.safety
@pytest.mark.parametrize(
    ("parallel", "more"),
    [
        ({"dp": 2, "pp": 2, "schedule": "zero-bubble", "microbatches": 2}, {}),
        ({"tp": 2, "pp": 2, "microbatches": 2}, {"precision": {"compute": "fp16"}}),
        ({"dp": 4, "dp_shard": 2, "zero": 2, "microbatches": 2}, {}),
        ({"dp": 4, "ep": 2}, {"model": {**SMALL, "experts": 4}}),
        ({"dp": 2, "cp": 2}, {"memory": {"checkpointing": "full", "offload": "parameters"}}),
    ],
    ids=lambda value: "-".join(f"{name}{number}" for name, number in value.items() if not isinstance(number, dict)),
)
def test_a_replay_names_the_rank_with_a_wrong_result_and_leaves_the_bits_of_an_undisturbed_run(
    run_ranks: RunRanks, parallel: dict[str, Any], more: dict[str, Any]
) -> None:
    run_ranks("replayed", ranks=4, parallel=parallel, **{"model": SMALL, **more})

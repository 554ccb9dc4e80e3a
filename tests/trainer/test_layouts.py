from typing import Any

import pytest

from holdfast_trainer.parallelize import stage_layers

MODEL = {"dim": 32, "layers": 3, "heads": 4, "kv_heads": 2, "hidden": 48}


@pytest.mark.parametrize(
    ("parallel", "model"),
    [
        ({}, {}),
        ({"dp": 2}, {}),
        ({"dp": 2}, {"tied": True}),
        ({"tp": 2}, {}),
        ({"tp": 2, "sequence_parallel": False}, {"tied": True}),
        ({"pp": 2}, {}),
        ({"dp": 2, "tp": 2, "sequence_parallel": False}, {}),
        ({"dp": 2, "tp": 2, "pp": 2}, {}),
    ],
    ids=lambda options: "-".join(f"{key}{value}" for key, value in options.items()) or "default",
)
def test_layout_computes_what_one_plain_process_computes(
    run_ranks: Any, parallel: dict[str, Any], model: dict[str, Any]
) -> None:
    ranks = parallel.get("dp", 1) * parallel.get("tp", 1) * parallel.get("pp", 1)
    output = run_ranks(
        "parity",
        ranks=ranks,
        model={**MODEL, **model},
        parallel={"microbatches": 2, **parallel},
        data={"sequence": 16},
        train={"global_batch": 8, "validation_batches": 2},
    )
    assert output.splitlines().count("one reporter") == 1


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 3, [[0, 1], [2, 3], [4]]),
        (3, 3, [[0], [1], [2]]),
    ],
)
def test_stages_share_the_layers_evenly(layers: int, stages: int, expected: list[list[int]]) -> None:
    assert [list(stage_layers(layers, stages=stages, stage=stage)) for stage in range(stages)] == expected

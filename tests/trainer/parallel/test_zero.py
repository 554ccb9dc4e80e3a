"""Each ZeRO stage makes the right number of collectives in a step of four microbatches.

There are four groups of parameters (three blocks, and the rest), and the loss takes one all-reduce for each axis.
"""

from typing import Any

import pytest

from tests.trainer.conftest import RunRanks

pytestmark = pytest.mark.system

MODEL = {"dim": 16, "layers": 3, "heads": 2, "kv_heads": 1, "hidden": 24}


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ({"dp": 2, "zero": 0}, "0 gathers, 0 reduce-scatters, 5 all-reduces"),
        ({"dp": 2, "zero": 1}, "4 gathers, 4 reduce-scatters, 1 all-reduces"),
        ({"dp": 2, "zero": 2}, "4 gathers, 16 reduce-scatters, 1 all-reduces"),
        ({"dp": 2, "zero": 3}, "32 gathers, 16 reduce-scatters, 1 all-reduces"),
        ({"dp": 4, "dp_shard": 2, "zero": 1}, "4 gathers, 4 reduce-scatters, 6 all-reduces"),
        ({"dp": 4, "dp_shard": 2, "zero": 3}, "32 gathers, 16 reduce-scatters, 6 all-reduces"),
    ],
    ids=str,
)
def test_stage_talks_as_often_as_its_name_says(run_ranks: RunRanks, parallel: dict[str, Any], expected: str) -> None:
    layout = {**parallel, "microbatches": 4}
    output = run_ranks("collectives", ranks=parallel["dp"], model=MODEL, parallel=layout, train={"global_batch": 16})
    assert {line for line in output.splitlines() if line.startswith("counts")} == {f"counts {expected}"}

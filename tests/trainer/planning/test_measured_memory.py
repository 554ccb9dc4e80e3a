import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.planning.parameters import rank_parameters
from holdfast_trainer.planning.plan import pipeline_places
from holdfast_trainer.planning.state_memory import state_memory

pytestmark = pytest.mark.system

MODEL = {"dim": 64, "layers": 4, "heads": 4, "kv_heads": 2, "hidden": 192}
LAYOUTS: list[dict[str, int]] = [{"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "pp": 2}]
CASES = [
    (("fp32", "bf16")[(number + zero) % 2], {**layout, "zero": zero})
    for number, layout in enumerate(LAYOUTS)
    for zero in range(4)
]
"""Each type with each layout, and with each stage of ZeRO."""


def configuration(compute: str, parallel: dict[str, int]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "parallel": {"microbatches": 2 * parallel.get("pp", 1), **parallel},
        "precision": {"compute": compute},
        "data": {"sequence": 16},
        "train": {"global_batch": 16},
        "distributed": {"device": "cpu"},
    }


@pytest.fixture(scope="module")
def measured() -> list[list[dict[str, int]]]:
    """Measured memory of each of four ranks, for each of CASES."""
    script = Path(__file__).with_name("measured_ranks.py")
    request = json.dumps([configuration(*case) for case in CASES])
    done = subprocess.run(
        [sys.executable, str(script)], input=request, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, int]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{compute}-{layout}" for compute, layout in CASES])
def test_ranks_hold_what_the_plan_says(measured: Sequence[Sequence[dict[str, int]]], case: int) -> None:
    config = TrainerConfig(**configuration(*CASES[case]))
    places = pipeline_places(config)
    for rank, found in enumerate(measured[case]):
        stages = places[rank // (4 // config.parallel.pp)]
        planned = asdict(state_memory(config, rank_parameters(config, stages)))
        for kind, size in found.items():
            assert size == pytest.approx(planned[kind], rel=0.05), kind

"""Layouts compared with one plain process: see parity.py."""

import tomllib
from importlib.resources import files

import pytest

from tests.trainer.conftest import CheckLayouts, RunRanks
from tests.trainer.layouts import OPTIMIZER, Layout, every_layout, sample, sweep

pytestmark = pytest.mark.system

SOAK_SIZE = 50
SAMPLE = sample(every_layout())
SWEEP = [[layout for layout in sweep(every_layout()) if layout.ranks == ranks] for ranks in (1, 2, 4, 8)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_layouts_compute_what_one_plain_process_computes(check_layouts: CheckLayouts, ranks: int) -> None:
    check_layouts([layout for layout in SAMPLE if layout.ranks == ranks])


@pytest.mark.safety
@pytest.mark.slice
def test_the_demos_layout_computes_what_one_plain_process_computes(run_ranks: RunRanks) -> None:
    demo = tomllib.loads((files("holdfast_trainer") / "configs" / "demo.toml").read_text())
    layout = demo["parallel"]
    assert (layout["dp"], layout["tp"], layout["pp"], layout.get("zero", 3)) == (2, 2, 2, 3)
    del demo["data"]["source"]
    run_ranks("sweep", ranks=8, **{**demo, "optimizer": OPTIMIZER})


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "layouts",
    [
        pytest.param(group[start : start + SOAK_SIZE], id=f"{group[0].ranks} ranks from {start}")
        for group in SWEEP
        for start in range(0, len(group), SOAK_SIZE)
    ],
)
def test_every_combination_does_too(check_layouts: CheckLayouts, layouts: list[Layout]) -> None:
    check_layouts(layouts)

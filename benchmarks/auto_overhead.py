"""Measure what ``--auto`` costs the training thread per step, side by side: the same loop with and without it.

The loop fetches a batch from a DataLoader, runs a backward pass of one small layer, and steps an optimizer that changes
nothing. Rounds with and without the automatic hooks follow each other in one process. The difference of the medians of
the two is the cost of a step. Of several such pairs the quietest counts, because the noise of other processes is no
cost of the hooks. Exits with 1 if the ceiling is broken.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.hook_overhead import attached
from holdfast_hooks import Hooks
from holdfast_hooks.auto.signs_of_training import SignsOfTraining

CEILING_US = 20.0
STEPS = 400
PAIRS = 20


class Nothing(torch.optim.Optimizer):
    """An optimizer whose step costs what torch's own frame around a step costs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change nothing."""


def round_us(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Return the median time of a step, in us."""
    rows: Any = torch.ones(STEPS, 8)  # as good as a data set
    loader: DataLoader[torch.Tensor] = DataLoader(rows, batch_size=None)
    times_ns = []
    before_ns = time.perf_counter_ns()
    for inputs in loader:
        model(inputs).sum().backward()
        optimizer.step()
        now_ns = time.perf_counter_ns()
        times_ns.append(now_ns - before_ns)
        before_ns = now_ns
    return statistics.median(times_ns) / 1000


def measure(hooks: Hooks, pairs: int) -> dict[str, float]:
    """Return the medians of a step without and with the automatic hooks, and the quietest difference, in us."""
    model = nn.Linear(8, 1)
    optimizer = Nothing(model)
    round_us(model, optimizer)
    without, with_auto = [], []
    first_step = 0
    for _ in range(pairs):
        without.append(round_us(model, optimizer))
        signs = SignsOfTraining(hooks, first_step)
        signs.install()
        with_auto.append(round_us(model, optimizer))
        signs.uninstall()
        hooks.end_step()  # the one that the last optimizer's step began
        first_step = signs.next_step + 1
        if signs.steps != STEPS:
            raise SystemExit(f"{signs.steps} of {STEPS} steps were seen")
    differences = sorted(after - before for before, after in zip(without, with_auto, strict=True))
    return {
        "without_us": round(min(without), 2),
        "with_us": round(min(with_auto), 2),
        "cost_us": round(min(with_auto) - min(without), 2),
        "median_cost_us": round(statistics.median(differences), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="number of rounds with and without")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, attached(Path(folder)) as hooks:
        result = measure(hooks, arguments.pairs)
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"a step without: {result['without_us']} us, with: {result['with_us']} us")
        print(f"cost of a step: {result['cost_us']} us, median of the pairs {result['median_cost_us']} us")
    if result["cost_us"] > CEILING_US:
        sys.exit(f"a step costs more than {CEILING_US:g} us")


if __name__ == "__main__":
    main()

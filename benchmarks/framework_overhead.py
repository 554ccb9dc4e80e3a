"""Measure what HoldfastCallback adds to each step of a Hugging Face Trainer, with a live reporter and a real server.

    build/frameworks/bin/python -m benchmarks.framework_overhead [--rounds N] [--json FILE]

A process trains the smallest model that a Trainer takes, and another one the same with the callback and an agent's
context. They take turns. No snapshot is due. Of several rounds the quietest counts for each of them, and the figure is
the difference of their median steps.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast_proto.rank_context import RankContext

STEPS = 600
WARM_UP_STEPS = 100


def median_step_us() -> float:
    """Train with the callback; return the median microseconds from the end of a step to the end of the next."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from holdfast_hooks.frameworks.huggingface import HoldfastCallback

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Notes when steps end."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401, ARG002
            """Note the time."""
            ends.append(time.perf_counter())

    class Model(torch.nn.Module):
        """A model with next to no work."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:  # noqa: ARG002
            """Return a loss."""
            return {"loss": self.layer(input_ids).square().mean()}

    torch.set_num_threads(1)
    rows = [{"input_ids": torch.ones(8), "labels": torch.ones(1)} for _ in range(1024)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=8,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        Trainer(Model(), arguments, train_dataset=rows, callbacks=[HoldfastCallback(), Clock()]).train()
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return statistics.median(steps[WARM_UP_STEPS:]) * 1e6


def in_a_process(module: str, context: dict[str, str]) -> float:
    """Return ``median_step_us()`` of a benchmark in a process of its own."""
    environment = {**os.environ, **context, "HF_HUB_OFFLINE": "1", "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-m", module, "--child"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure(module: str, rounds: int) -> dict[str, float]:
    """Return the median step with and without Holdfast, and the difference, in microseconds.

    Args:
        module: name of the benchmark whose ``--child`` prints the median of one process.
        rounds: pairs of processes.
    """
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        socket = f"{folder}/agent.sock"
        context = RankContext(run="bench", generation=0, agent=f"unix:{socket}", black_box=f"{folder}/black-box")
        command = [sys.executable, "-m", "benchmarks.hook_overhead", "--serve", socket]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdin is not None and agent.stdout is not None
            agent.stdout.readline()
            found = [(in_a_process(module, {}), in_a_process(module, context.to_environment())) for _ in range(rounds)]
            agent.stdin.close()
    alone, held = (min(values) for values in zip(*found, strict=True))
    return {"without_us": round(alone, 1), "with_us": round(held, 1), "added_us": round(held - alone, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(median_step_us())
        return
    figures = measure("benchmarks.framework_overhead", options.rounds)
    print(
        f"a step of {figures['without_us']:g} us takes {figures['with_us']:g} us with HoldfastCallback:"
        f" {figures['added_us']:g} us more"
    )
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

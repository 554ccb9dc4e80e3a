"""The parts of `make gpu`: what each of them shows, how it is run, and how long it may take."""

import sys
from dataclasses import dataclass

LONGEST_S = 520
"""No part may take nine minutes: machines with a GPU are often lent for ten minutes at a time."""


@dataclass(frozen=True)
class Part:
    """One part. It runs in a process of its own, so that a kernel that hangs stops nothing else."""

    name: str
    shows: str
    """One sentence for the report."""
    limit_s: float
    measurement: str = ""
    """Module in benchmarks/gpu/measurements; empty: the part runs tests."""
    marks: str = ""
    """Expression of pytest's -m that selects its tests."""

    def command(self) -> list[str]:
        """Return the command that prints the part's outcome."""
        if self.measurement:
            return [sys.executable, "-m", "benchmarks.gpu.measure", self.measurement]
        return [sys.executable, "-m", "benchmarks.gpu.tests_part", self.marks, str(round(self.limit_s))]


PARTS = (
    Part("paths", "Every CUDA path in one process does what its test says.", 480, marks="gpu and not system"),
    Part("ranks", "Every CUDA path of several ranks on one GPU does so too.", 500, marks="gpu and system"),
    Part("recorder", "What NCCL's recorder shows in a world of one, and what a dump costs.", 180, "recorder"),
    Part("run-ahead", "How far the host runs ahead of the GPU, and what the recorder shows of it.", 180, "run_ahead"),
    Part("events", "Numbers and events of the GPU are read late, without waiting.", 180, "deferred_numbers"),
    Part("memory", "The reported memory is torch's, and watching opens no CUDA context.", 240, "gpu_memory"),
    Part("hook-cost", "What the hooks cost the training thread on a GPU.", 300, "hook_cost"),
    Part("checkpoint-stall", "How long a snapshot of GPU memory stalls training.", 400, "checkpoint_stall"),
    Part("stuck-kernel", "A kernel that lasts is reported, and nobody is named falsely.", 400, "stuck_kernel"),
    Part("stopped-rank", "A rank on the GPU that is stopped is named.", 300, "stopped_rank"),
    Part("killed-rank", "A killed rank frees its GPU memory, and the run trains again.", 400, "killed_rank"),
    Part("training", "Tokens per second and MFU of the trainer in bf16 and fp8.", 500, "training_speed"),
)


def part_named(name: str) -> Part:
    """Return a part. Raises ValueError if there is none of that name."""
    for part in PARTS:
        if part.name == name:
            return part
    raise ValueError(f"there is no part {name!r}: choose one of {', '.join(part.name for part in PARTS)}")

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
    Part("events", "Numbers and events of the GPU are read late, without waiting.", 180, "deferred_numbers"),
    Part("memory", "The reported memory is torch's, and watching opens no CUDA context.", 180, "gpu_memory"),
    Part("hook-cost", "What the hooks cost the training thread on a GPU.", 300, "hook_cost"),
)


def part_named(name: str) -> Part:
    """Return a part. Raises ValueError if there is none of that name."""
    for part in PARTS:
        if part.name == name:
            return part
    raise ValueError(f"there is no part {name!r}: choose one of {', '.join(part.name for part in PARTS)}")

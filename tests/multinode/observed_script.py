"""A rank that another launcher starts: ``observed_script.py STEPS FOLDER``. It takes about 20 steps a second.

A test makes files in the folder. ``hang-RANK``: the rank waits forever in a lock. ``long-RANK``: its next step computes
for some seconds, and then the file is gone. ``slow-RANK``: each step takes it longer, as long as the file exists.
``steps-RANK`` gets a byte for each step that the rank has done.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast_hooks

PLACES = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
LONG_S = 8.0
"""Time of the unusual step, at 20 usual steps a second."""
SLOW_S = 0.3


def compute(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def wait_forever() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def obey(folder: Path, rank: int) -> None:
    """Do what a test wants of this rank."""
    if (folder / f"hang-{rank}").exists():
        wait_forever()
    long = folder / f"long-{rank}"
    if long.exists():
        compute(LONG_S)
        long.unlink()
    if (folder / f"slow-{rank}").exists():
        compute(SLOW_S)


def main(steps: int, folder: Path) -> None:
    torch.set_num_threads(1)
    number, size = next(names for names in PLACES if names[0] in os.environ)
    rank = int(os.environ[number])
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ[size]))
    weights = torch.ones(16)
    with holdfast_hooks.attach() as hooks, (folder / f"steps-{rank}").open("ab", buffering=0) as done:
        for _ in hooks.steps(until=steps):
            time.sleep(0.05)
            obey(folder, rank)
            dist.all_reduce(weights)
            weights /= dist.get_world_size()
            hooks.report(loss=1.0)
            done.write(b".")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

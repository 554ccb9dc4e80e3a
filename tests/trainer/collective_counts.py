"""The number of collectives of each rank in one step of four microbatches."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.parallelize import parallelize
from holdfast_trainer.pipeline.pipeline import Runner
from tests.trainer.parity import CPU, share

KINDS = {
    torch.ops.c10d._allgather_base_.default: "gathers",
    torch.ops.c10d._reduce_scatter_base_.default: "reduce-scatters",
    torch.ops.c10d.allreduce_.default: "all-reduces",
}


class CollectiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[KINDS[func]] += 1
        return func(*args, **(kwargs or {}))


def print_collectives(config: TrainerConfig) -> None:
    """Print the counts of the second step, as one line of each rank."""
    mesh = Mesh.create(config.parallel, "cpu")
    runner = Runner(config, mesh, parallelize(config, mesh, CPU), CPU, None)
    batch = share(config, mesh, 0)
    runner.forward_backward(batch)
    with CollectiveCounter() as counter:
        runner.forward_backward(batch)
    counts = ", ".join(f"{counter.counts[kind]} {kind}" for kind in KINDS.values())
    print(f"counts {counts}\n", end="", flush=True)  # in one piece, as all ranks write to one file

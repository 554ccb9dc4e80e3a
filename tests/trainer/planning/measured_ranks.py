"""Four ranks that run steps of one layout after the other and count the bytes that they hold.

Run as a script: a list of configurations as JSON on stdin; on stdout a JSON line with, for each of them, the largest
bytes of each kind on every rank.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

import holdfast_trainer.preload  # noqa: F401
from holdfast_trainer.config import TrainerConfig
from holdfast_trainer.data.batches import Batch
from holdfast_trainer.model.parts import ModelParts
from holdfast_trainer.optimizer import make_optimizer
from holdfast_trainer.parallel.mesh import Mesh
from holdfast_trainer.parallel.parallelize import parallelize
from holdfast_trainer.pipeline.pipeline import Runner

RANKS = 4
CPU = torch.device("cpu")


def measure(config: TrainerConfig) -> dict[str, int]:
    """Run one step; return the largest bytes of each kind that this rank held."""
    mesh = Mesh.create(config.parallel, "cpu")
    parts = parallelize(config, mesh, CPU)
    optimizer = make_optimizer(parts.parameters(), config.optimizer)
    runner = Runner(config, mesh, parts, CPU, None)
    most = {"gathered": 0, "gradients": 0}

    def look_at_parameters(*_: object) -> None:
        most["gathered"] = max(most["gathered"], _gathered(parts))

    def look_at_gradients(*_: object) -> None:
        most["gradients"] = max(most["gradients"], _gradients(parts))

    for module in parts.modules:
        for block in module.layers.values():
            # Its last module: between the block's forward pass and the freeing of its parameters.
            last = block.get_submodule("feed_forward.output")
            last.register_forward_hook(look_at_parameters)
            last.register_full_backward_pre_hook(look_at_parameters)
            # While a forward pass runs no gradient is on its way: what is there stays from microbatch to microbatch.
            last.register_forward_hook(look_at_gradients)
    runner.forward_backward(_batch(config))
    look_at_gradients()
    optimizer.step()
    return {**most, "parameters": _bytes(parts.parameters()), "optimizer": _moments(optimizer)}


def _batch(config: TrainerConfig) -> Batch:
    length = config.data.sequence
    tokens = torch.zeros(config.train.global_batch // config.parallel.dp, length, dtype=torch.int64)
    return Batch(inputs=tokens, targets=tokens, positions=torch.arange(length), spans=None, fingerprint=b"")


def _bytes(tensors: Iterable[Tensor | None]) -> int:
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    storages = {tensor.untyped_storage() for tensor in local if tensor is not None}
    # Gradients of a group are views of one storage.
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _moments(optimizer: Optimizer) -> int:
    return _bytes(state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))


def _fsdp_parameters(parts: ModelParts) -> Iterable[Any]:
    for part in parts.modules:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                for group in module._get_fsdp_state()._fsdp_param_groups:
                    yield from group.fsdp_params


def _gathered(parts: ModelParts) -> int:
    return sum(
        output.untyped_storage().nbytes()
        for parameter in _fsdp_parameters(parts)
        for output in parameter.all_gather_outputs
    )


def _gradients(parts: ModelParts) -> int:
    """Return the gradients: sharded ones, and whole ones that wait to be reduced."""
    found: list[Tensor | None] = []
    for parameter in _fsdp_parameters(parts):
        found += [parameter.sharded_param.grad, parameter.unsharded_accumulated_grad]
        if hasattr(parameter, "_unsharded_param"):
            found.append(parameter.unsharded_param.grad)
    return _bytes(found)


def run_rank(rank: int, folder: Path, configurations: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found = [measure(TrainerConfig(**values)) for values in configurations]
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


def main() -> None:
    configurations = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pids = [_fork(rank, folder, configurations) for rank in range(RANKS)]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(statuses):
            sys.exit(1)
        ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]
    print(json.dumps(list(zip(*ranks, strict=True))))


def _fork(rank: int, folder: Path, configurations: list[dict[str, Any]]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run_rank(rank, folder, configurations)
        status = 0
    except BaseException:  # noqa: BLE001 (a rank must end here, after any error)
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

"""An FSDP2 script that lets Holdfast compute every 50th step twice, to find a rank that computes something wrong.

    holdfast run --run replayed --ranks 3 -- python examples/replayed_steps.py 200

Rank 1 computes one number wrong in step 150, once. Under FSDP its gradient reaches all ranks, and no rank has a copy of
another one's parameters: only the replay shows it. Training ends with the bits of a run without the fault, because the
wrong run of step 150 is not kept.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import holdfast_hooks

WRONG_RANK, WRONG_STEP = 1, 150


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
    faults = {(WRONG_RANK, WRONG_STEP)}

    def forward(step: int, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = model(inputs)
        if (dist.get_rank(), step) in faults:
            faults.clear()  # the next run of the step is right
            return outputs * (1 + 1e-5)
        return outputs

    with holdfast_hooks.attach(
        state={"model": model, "optimizer": holdfast_hooks.by_name(optimizer, model), "scheduler": scheduler},
        check_data_position=False,  # the number of the step decides the batch
    ) as hooks:
        # [replay]
        for step in hooks.steps(until=steps):
            inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(3 * step + dist.get_rank()))

            def train(step: int = step, inputs: torch.Tensor = inputs) -> torch.Tensor:
                loss = nn.functional.mse_loss(forward(step, inputs), inputs.mean(dim=1, keepdim=True))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            loss = hooks.replay(train, every=50)
            scheduler.step()  # it counts, so it is called once in each step
            hooks.report(loss=loss)
        # [end]
        shards = torch.cat([shard.to_local().flatten() for shard in model.parameters() if isinstance(shard, DTensor)])
        print(f"bits of rank {dist.get_rank()}: {shards.view(torch.int32).sum()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))

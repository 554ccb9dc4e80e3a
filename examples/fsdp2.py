"""An FSDP2 script whose sharded model and optimizer Holdfast snapshots and restores.

    holdfast run --ranks 2 -- python examples/fsdp2.py 1000

Kill a rank while it trains: the run continues. ``holdfast observe -- torchrun ...`` watches the same script.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import holdfast_hooks


def main(steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    # [state]
    # A plain optimizer numbers its parameters. By their names, its state also loads on another number of ranks.
    state: dict[str, holdfast_hooks.Stateful] = {"model": model, "optimizer": holdfast_hooks.by_name(optimizer, model)}
    # [end]
    # The inputs come from torch's random numbers, whose state is always saved. So there is no position in the data.
    with holdfast_hooks.attach(state=state, check_data_position=False) as hooks:
        for _ in hooks.steps(until=steps):
            inputs = torch.randn(64, 512)
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(dim=1, keepdim=True))
            loss.backward()
            hooks.enter(holdfast_hooks.Phase.OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            hooks.report(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))

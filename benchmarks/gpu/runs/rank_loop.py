"""One rank of such a run: ``python rank_loop.py DEVICE BACKEND FOLDER``.

With gloo, all ranks share the first GPU. A file ``stuck-RANK`` in FOLDER makes the rank enqueue a kernel of that many
seconds in front of its next collective.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast_hooks
from benchmarks.gpu.timing import busy_for
from holdfast_hooks import Phase, Stateful

WIDTH = 1024
STEPS = 1_000_000
"""More than are trained: the measurement ends the run."""
_PACE_S = 0.05


def main(device: str, backend: str, folder: Path) -> None:
    if device == "cuda":
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if backend == "nccl" and device == "cuda" else "gloo")
    rank = dist.get_rank()
    stuck = folder / f"stuck-{rank}"
    model = torch.nn.Linear(WIDTH, WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.ones(64, WIDTH, device=device)
    state: dict[str, Stateful] = {"model": model, "optimizer": optimizer}
    with holdfast_hooks.attach(state=state, device=device) as hooks:
        for step in hooks.steps(until=STEPS):
            hooks.enter(Phase.FORWARD_BACKWARD)
            loss = model(x).square().mean()
            loss.backward()
            if stuck.exists():
                seconds = float(stuck.read_text())
                stuck.unlink()
                busy_for(seconds, device)
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            hooks.enter(Phase.OPTIMIZER)
            optimizer.step()
            optimizer.zero_grad()
            hooks.report(loss=loss, tokens=64)
            if rank == 0 and step % 20 == 0:
                print(f"step {step}  loss {loss.item():.4f}", flush=True)
            time.sleep(_PACE_S)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

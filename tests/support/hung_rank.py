"""One of two ranks on gloo with everything that makes noise in the background: ``hung_rank.py STEP``.

In that step rank 0 hangs in a lock and rank 1 waits for it.
"""

import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import holdfast_hooks

POLL_S = 0.1


class Ones(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(4)


def poll_store() -> None:
    """Poll the rendezvous store as NCCL's watchdogs do."""
    store = dist.distributed_c10d._get_default_store()
    while True:
        store.check(["no such key"])
        time.sleep(POLL_S)


def main(hangs_at: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    threading.Thread(target=poll_store, daemon=True).start()
    model = torch.nn.Linear(4, 4)
    batches = iter(DataLoader(Ones(), batch_size=4, num_workers=1))
    with holdfast_hooks.attach(state={"model": model}) as hooks:
        for step in hooks.steps(until=100):
            total = model(next(batches)).sum().detach()
            if step == hangs_at and dist.get_rank() == 0:
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
            dist.all_reduce(total)


if __name__ == "__main__":
    main(int(sys.argv[1]))

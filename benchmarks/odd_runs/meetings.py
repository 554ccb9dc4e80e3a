"""Ways in which the ranks meet after a pause. Those that did not pause wait there."""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

_FOREVER = timedelta(hours=1)


def all_reduce() -> None:
    """Meet in the gradient's sum."""
    dist.all_reduce(torch.ones(1))


def barrier() -> None:
    """Meet in a barrier."""
    dist.barrier()


def broadcast() -> None:
    """Receive a broadcast from rank 0."""
    dist.broadcast(torch.ones(1), src=0)


def gather() -> None:
    """Collect the metrics of all ranks."""
    part = torch.ones(1)
    dist.all_gather([torch.empty(1) for _ in range(dist.get_world_size())], part)


def objects() -> None:
    """Collect pickled metrics of all ranks."""
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"accuracy": 0.5})


def message() -> None:
    """Send from rank 0 to rank 1, then meet."""
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), dst=1)
    elif dist.get_rank() == 1:
        dist.recv(torch.empty(1), src=0)
    all_reduce()


def polled() -> None:
    """Poll for the end of a sum with short sleeps, as code that overlaps its communication does."""
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    while not work.is_completed():
        time.sleep(0.01)
    work.wait()


def subgroups() -> None:
    """Meet in pairs, then all together."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    dist.all_reduce(torch.ones(1), group=pairs[rank // 2])
    all_reduce()


def store_key() -> None:
    """Wait for a key of the store and not in a collective, so that nothing shows which rank waits for which."""
    store = dist.distributed_c10d._get_default_store()
    _rounds[0] += 1
    store.set(f"odd-{_rounds[0]}-{dist.get_rank()}", "here")
    store.wait([f"odd-{_rounds[0]}-{rank}" for rank in range(dist.get_world_size())], _FOREVER)


_rounds = [0]

MEETINGS: dict[str, Callable[[], None]] = {
    "all_reduce": all_reduce,
    "barrier": barrier,
    "broadcast": broadcast,
    "gather": gather,
    "objects": objects,
    "message": message,
    "polled": polled,
    "subgroups": subgroups,
    "store": store_key,
    "none": lambda: None,
}

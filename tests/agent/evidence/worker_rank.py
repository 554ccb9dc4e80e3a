"""A rank with torch's worker server and one gloo group that hangs: ``worker_rank.py SOCKET gil_held|lock``."""

import ctypes
import sys
import threading

import torch
import torch.distributed as dist


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(600)  # a PyDLL keeps the interpreter's lock during its calls


def wait_for_a_lock() -> None:
    threading.Event().wait()


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    dist.all_reduce(torch.ones(3))
    server = torch._C._distributed_c10d._WorkerServer(sys.argv[1])
    print("ready", server is not None, flush=True)
    {"gil_held": hold_the_interpreter, "lock": wait_for_a_lock}[sys.argv[2]]()


if __name__ == "__main__":
    main()

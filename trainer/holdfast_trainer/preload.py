"""Imports everything that a rank needs. The warm parent imports this module, so the ranks that it forks start fast.

It does nothing but import. Threads, process groups, channels and devices would not survive the fork.
"""

import os

# torch imports NumPy, whose OpenBLAS would start its threads during the import.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # noqa: F401

import holdfast_hooks  # noqa: F401  it imports grpc, too, in a way of its own
import holdfast_trainer.train  # noqa: F401

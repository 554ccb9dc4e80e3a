"""Import all that a rank will need, so that ranks forked from a process that imported this start at once.

Importing is all it does: no threads, process groups, channels or devices, which would not survive a fork.
"""

import os

# The OpenBLAS in NumPy, which torch imports, would start its threads at once.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import grpc  # noqa: F401
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # noqa: F401

import holdfast_hooks  # noqa: F401
import holdfast_trainer.train  # noqa: F401

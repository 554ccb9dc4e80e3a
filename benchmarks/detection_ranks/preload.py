"""The modules that the ranks need, for their warm parent to import."""

import torch._dynamo  # a dispatch mode, which faults of calls need, imports it when it is first used
import torch.distributed.device_mesh
import torch.distributed.tensor  # noqa: F401

import holdfast_hooks.progress.call_watch  # noqa: F401

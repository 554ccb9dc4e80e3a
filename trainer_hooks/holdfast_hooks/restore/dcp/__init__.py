"""Holdfast's checkpoints for torch.distributed.checkpoint: plain ``load`` and ``save`` with our reader and writer.

::

    import torch.distributed.checkpoint as dcp
    from holdfast_hooks.restore.dcp import CheckpointReader

    state = {"model": model.state_dict()}
    dcp.load(state, storage_reader=CheckpointReader("checkpoints/step-00000040"))
    model.load_state_dict(state["model"])

This works in one process without a process group too. It imports torch and, when used, xxhash and zstandard.
"""

from holdfast_hooks.restore.dcp.dcp_reader import CheckpointReader
from holdfast_hooks.restore.dcp.dcp_writer import CheckpointWriter

__all__ = ["CheckpointReader", "CheckpointWriter"]

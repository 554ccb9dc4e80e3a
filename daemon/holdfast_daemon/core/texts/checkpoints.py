"""Checkpoints that were not written, and checkpoints that cannot be read."""

from holdfast_proto.v1 import store_pb2 as store

_MIB = 2.0**20


def checkpoint(verdict: store.Verdict) -> str:
    """Return what is wrong with a checkpoint, and what to do."""
    detail, step = verdict.checkpoint, verdict.step
    match detail.trouble:
        case store.CHECKPOINT_TROUBLE_FAILED:
            return f"checkpoint of step {step} failed: {detail.reason}"
        case store.CHECKPOINT_TROUBLE_DAMAGED:
            return f"the checkpoint of step {step} is damaged: `holdfast checkpoint list` names the file"
        case store.CHECKPOINT_TROUBLE_WAITING:
            return (
                f"the run waits, because its checkpoint of step {step} cannot be read: {detail.reason}: bring the"
                " files back (is the file system mounted, the store reachable?); it continues by itself when they are"
                " there"
            )
        case store.CHECKPOINT_TROUBLE_NO_MEMORY:
            memory = detail.memory
            return (
                f"node {detail.node}: snapshots need {memory.needed_bytes / _MIB:.0f} MiB and {memory.directory} has"
                f" {memory.free_bytes / _MIB:.0f} MiB free: checkpoints go straight to disk instead; make it larger,"
                " or name another with --shm-directory"
            )
    return detail.reason

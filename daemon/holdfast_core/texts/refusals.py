"""Starts that are not repeated, and checkpoints that were not written or cannot be read."""

from holdfast_proto.v1 import store_pb2 as store


def program(verdict: store.Verdict) -> str:
    """Return with which error the program ended on all ranks."""
    detail = verdict.program
    who = "rank 0" if detail.world_size == 1 else f"all {detail.world_size} ranks"
    return f"{who} ended before holdfast_hooks.attach(), so the run is not started again: {detail.error}"


def launcher(verdict: store.Verdict) -> str:
    """Return which world a rank belongs to, and what to do."""
    detail = verdict.launcher
    ours = f"{detail.world_size} rank{'s' if detail.world_size > 1 else ''}"
    return (
        f"rank {verdict.culprits[0]} belongs to a world of {detail.launched_world_size} ranks, but Holdfast started"
        f" {ours}: its command starts ranks itself: use `holdfast observe -- COMMAND`, or give `holdfast run` the"
        " command of one rank"
    )


def unused(source: int, step: int, *, any_attached: bool) -> str:
    """Return that a run has ended without the state of ``step``, and what to do."""
    state = f"the {'checkpoint' if source == store.SOURCE_CHECKPOINT else 'snapshot'} of step {step}"
    if any_attached:
        what, missing = f"no rank restored {state}, and none began a step", "hooks.restore()"
    else:
        what, missing = f"no rank attached: {state} was not used, and nothing was saved", "holdfast_hooks.attach()"
    return f"{what}: call {missing} before the training loop (docs/own-trainer.md), or start with --from-scratch"


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

"""Starts that are not repeated, because another one would end in the same way."""

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

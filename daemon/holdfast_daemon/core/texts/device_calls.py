"""Hangs in calls on devices: what the ranks' recorders show."""

from holdfast_proto.v1 import store_pb2 as store


def device_call(verdict: store.Verdict) -> str:
    """Return what happened and what it rests on."""
    detail = verdict.device_call
    if detail.by_counters:
        return f"{detail.what} (by counters alone)"
    missing = detail.world_size - detail.recorders
    read = f"the recorders of {detail.recorders} of {detail.world_size} ranks" if missing else "the ranks' recorders"
    return f"{detail.what} (by {read})"

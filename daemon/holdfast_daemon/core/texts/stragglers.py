"""Ranks and nodes that hold the others up in every step."""

from holdfast_daemon.core.naming import phase_name, ranks_named
from holdfast_daemon.core.texts import gpus
from holdfast_proto.v1 import store_pb2 as store


def straggler(verdict: store.Verdict) -> str:
    """Return who is slow, since when, in what phase, and by how much the slowest rank is."""
    culprits = verdict.culprits
    who = f"{ranks_named(culprits)} {'is' if len(culprits) == 1 else 'are'}"
    if verdict.node:
        who = f"node {verdict.node} is"
    if verdict.straggler.kind == store.OWN_TIME_KIND_DEVICE:
        return f"{who} slow since step {verdict.step}, on the GPU: {_works(verdict)}{gpus.witness(verdict)}"
    how = _sleeps(verdict) if verdict.straggler.kind == store.OWN_TIME_KIND_ASLEEP else _needs(verdict)
    return f"{who} slow since step {verdict.step}, in {phase_name(verdict.phase)}: {how}{gpus.witness(verdict)}"


def _works(verdict: store.Verdict) -> str:
    detail, culprits = verdict.straggler, verdict.culprits
    gpu = "its GPU" if len(culprits) == 1 else f"that of {ranks_named(culprits[:1])}"
    compared = f"those of its peers {detail.usual_s:.3g} s" if detail.by_peers else f"{detail.usual_s:.3g} s before"
    factor = f" ({detail.own_s / detail.usual_s:.1f} times as much)" if detail.usual_s > 0.0 else ""
    return f"{gpu} works {detail.own_s:.3g} s per step without waiting for other ranks, {compared}{factor}"


def _needs(verdict: store.Verdict) -> str:
    detail, culprits = verdict.straggler, verdict.culprits
    whose = "" if len(culprits) == 1 else f"{ranks_named(culprits[:1])} needs "
    compared = f"its peers {detail.usual_s:.3g} s" if detail.by_peers else f"{detail.usual_s:.3g} s before"
    factor = f" ({detail.own_s / detail.usual_s:.1f} times as much)" if detail.usual_s > 0.0 else ""
    return f"{whose}{detail.own_s:.3g} s of its own time per step, {compared}{factor}"


def _sleeps(verdict: store.Verdict) -> str:
    # The times are estimates from samples, so they have two digits and no factor.
    detail, culprits = verdict.straggler, verdict.culprits
    compared = f"those of its peers {detail.usual_s:.2g} s" if detail.by_peers else f"{detail.usual_s:.2g} s before"
    thread = "its training thread" if len(culprits) == 1 else f"the training thread of {ranks_named(culprits[:1])}"
    return f"{thread} sleeps about {detail.own_s:.2g} s per step while no call with other ranks is pending, {compared}"

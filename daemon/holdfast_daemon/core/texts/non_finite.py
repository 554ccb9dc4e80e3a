"""Numbers that are not finite."""

from holdfast_daemon.core.naming import ranks_named
from holdfast_proto.step_quantities import GRADIENT
from holdfast_proto.v1 import store_pb2 as store


def non_finite(verdict: store.Verdict) -> str:
    """Return which number is not finite, on which ranks, and what is known about its origin."""
    detail = verdict.non_finite
    if detail.quantity == GRADIENT:
        return f"{_own_gradient(verdict)}{_of_the_run(detail)}{_way_back(detail)}"
    origin = "" if verdict.culprits else "; no rank is known as the origin"
    holder = (
        f"; rank {detail.ranks[0]} holds a gradient of {detail.parameter} that is not finite"
        if detail.parameter
        else ""
    )
    also = f"; {' and '.join(detail.also)} {'are' if len(detail.also) > 1 else 'is'} not finite either"
    return (
        f"{detail.quantity} is not finite since step {verdict.step}{_where(detail)}"
        f"{also if detail.also else ''}{holder}{origin}{_way_back(detail)}"
    )


def _own_gradient(verdict: store.Verdict) -> str:
    detail, step = verdict.non_finite, verdict.step
    first, others = f"rank {detail.ranks[0]}", detail.ranks[1:]
    if detail.module:
        later = f", before {ranks_named(others)}" if others else ""
        return f"{first} made a gradient that is not finite in {detail.module} at step {step}{later}"
    had = f"had a gradient of {detail.parameter} that was not finite at step {step}, before a sum over ranks"
    return f"{first} {had}; {ranks_named(others)} had one, too" if others else f"{first} {had}"


def _of_the_run(detail: store.NonFiniteDetail) -> str:
    return f"; {detail.also[0]} of the run is not finite" if detail.also else ""


def _way_back(detail: store.NonFiniteDetail) -> str:
    """Return the checkpoint to go back to, if one is known."""
    is_known = detail.HasField("good_checkpoint")
    return f"; the newest proven checkpoint is that of step {detail.good_checkpoint}" if is_known else ""


def _where(detail: store.NonFiniteDetail) -> str:
    if detail.world_size == 1:
        return ""
    if len(detail.ranks) == detail.world_size:
        return f", on all {detail.world_size} ranks"
    if not detail.finite_ranks:
        return f", on {ranks_named(detail.ranks)}"
    others = "the other rank reports a finite one"
    if detail.finite_ranks > 1:
        others = f"{detail.finite_ranks} other ranks report a finite one"
    return f", on {ranks_named(detail.ranks)} alone: {others}"

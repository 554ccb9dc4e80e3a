"""Renders what people read of a verdict from its detail.

A detector fills in what it saw, and evidence that arrives later corrects these fields. The text is never edited: it is
rendered anew.
"""

from collections.abc import Callable, Mapping

from holdfast_core.texts import deaths, device_calls, hangs, mismatches, numbers, refusals, speed
from holdfast_proto.v1 import store_pb2 as store

_RENDERERS: Mapping[str, Callable[[store.Verdict], str]] = {
    "death": deaths.death,
    "lost_node": deaths.lost_node,
    "late_exit": deaths.late_exit,
    "hang": hangs.hang,
    "standstill": hangs.standstill,
    "mismatch": mismatches.mismatch,
    "transport": hangs.transport,
    "data_share": speed.data_share,
    "throughput": speed.throughput,
    "memory": speed.memory,
    "allocator": speed.allocator,
    "checkpoint": refusals.checkpoint,
    "program": refusals.program,
    "launcher": refusals.launcher,
    "loss_spike": numbers.loss_spike,
    "loss_rise": numbers.loss_rise,
    "loss_divergence": numbers.loss_divergence,
    "missing_loss": numbers.missing_loss,
    "gradient_explosion": numbers.gradient_explosion,
    "overflow": numbers.overflow,
    "duplicate_samples": numbers.duplicate_samples,
    "non_finite": numbers.non_finite,
    "straggler": speed.straggler,
    "corruption": numbers.corruption,
}


def render(verdict: store.Verdict) -> str:
    """Return the line for people; that of a verdict without a detail, which an older version has kept, is as it was."""
    detail = verdict.WhichOneof("detail")
    if detail is None and not _is_device_cause(verdict):
        return verdict.message
    what = _RENDERERS[detail](verdict) if detail is not None else device_calls.device_call(verdict)
    return f"{what}{_by_recorders(verdict.device_call)}" if verdict.HasField("device_call") else what


def _is_device_cause(verdict: store.Verdict) -> bool:
    return bool(verdict.device_call.cause or verdict.device_call.what)


def _by_recorders(shown: store.DeviceCallDetail) -> str:
    if shown.by_counters:
        return " (by counters alone)"
    is_whole = shown.recorders >= shown.world_size
    read = "the ranks' recorders" if is_whole else f"the recorders of {shown.recorders} of {shown.world_size} ranks"
    return f" (by {read})"


def is_complete(verdict: store.Verdict) -> bool:
    """Return whether a detail has what its text cannot do without; one that was kept by another version may not."""
    match verdict.WhichOneof("detail"):
        case "mismatch":
            return mismatches.is_complete(verdict.mismatch)
        case "throughput":
            return not verdict.throughput.HasField("step_s") or verdict.throughput.step_before_s > 0.0
        case "late_exit" | "memory" | "allocator" | "launcher" | "straggler":
            return bool(verdict.culprits)
    needed = (
        ("death", verdict.death.ends),
        ("hang", verdict.hang.ranks),
        ("lost_node", verdict.lost_node.ranks),
        ("non_finite", verdict.non_finite.ranks),
    )
    detail = verdict.WhichOneof("detail")
    is_said = detail is not None or _is_device_cause(verdict) or not verdict.HasField("device_call")
    return is_said and all(ranks for name, ranks in needed if name == detail)


def write(verdict: store.Verdict) -> None:
    """Render the texts of a verdict into it: its line, and the lines of mismatched calls."""
    verdict.message = render(verdict)
    if verdict.HasField("mismatch"):
        del verdict.calls[:]
        verdict.calls.extend(mismatches.sides(verdict.mismatch))

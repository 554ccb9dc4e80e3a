"""How calls, moments in a rank's program, and faults of its GPU are spelled."""

from holdfast_core.naming import listed, phase_name, ranks_named
from holdfast_proto.v1 import common_pb2 as common
from holdfast_proto.v1 import store_pb2 as store

_NOT_DESCRIBED = "undefined"
"""What torch calls a group to which its program has given no description."""


def group(call: store.CallPlace) -> str:
    """Return a call's group, with its description where it has one: ``group 5 (mesh_tp)``."""
    is_described = call.description not in ("", _NOT_DESCRIBED)
    return f"group {call.group} ({call.description})" if is_described else f"group {call.group}"


def numbered(call: store.CallPlace) -> str:
    """Return ``call 13 of group 0``: for a number at which ranks have made different calls."""
    return f"call {call.seq} of {group(call)}"


def named(call: store.CallPlace) -> str:
    """Return ``gloo:all_reduce 13 of group 0``. Of messages, recorders show no number and the ranks of their group."""
    where = group(call)
    return f"{call.op} {call.seq} of {where}" if call.seq else f"{call.op} of {where} (by ranks of the group)"


def with_inputs(call: store.CallPlace) -> str:
    """Return a call's name with the sizes and types of its inputs, as far as they are known."""
    return " ".join(part for part in (call.op, call.sizes, call.dtypes) if part)


def moment(step: int, phase: "common.Phase") -> str:
    """Return where in its program a rank is: ``in data of step 7``, ``before the first step``."""
    of_step = "before the first step" if step < 0 else f"step {step}"
    if phase == common.PHASE_UNSPECIFIED:
        return of_step if step < 0 else f"in {of_step}"
    return f"in {phase_name(phase)}, {of_step}" if step < 0 else f"in {phase_name(phase)} of {of_step}"


def after(fault: store.GpuFault) -> str:
    """Return e.g. ", after Xid 79 on its GPU 3 (the GPU has fallen off the bus)"; nothing without an error."""
    if not (fault.xid or fault.meaning):
        return ""
    meaning = f" ({fault.meaning})" if fault.meaning else ""
    what = f"Xid {fault.xid} on" if fault.xid else "an error of"
    return f", after {what} its GPU {fault.gpu}{meaning}"


def witness(verdict: store.Verdict) -> str:
    """Return what the GPU of the slowest rank shows of the cause; nothing if it shows none."""
    detail, culprits = verdict.straggler, verdict.culprits
    gpu = f"its GPU {detail.gpu}" if len(culprits) == 1 else f"GPU {detail.gpu} of {ranks_named(culprits[:1])}"
    clocks = f"; the clocks of {gpu} are low: {listed(detail.throttles)}" if detail.throttles else ""
    if not detail.side:
        return clocks
    shares = f"{detail.utilization_ratio:.0%} of the time, those of its peers {detail.peers_utilization_ratio:.0%}"
    if detail.side == store.SLOW_SIDE_GPU:
        return f"{clocks}; it runs kernels {shares}: that points to the GPU itself"
    return f"{clocks}; {gpu} runs kernels {shares}: that points to its host"

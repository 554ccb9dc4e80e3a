"""How calls, and moments in a rank's program, are spelled."""

from holdfast_daemon.core.naming import phase_name
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

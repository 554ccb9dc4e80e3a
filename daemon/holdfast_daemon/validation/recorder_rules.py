"""Checks a shortened dump of a rank's recorder."""

from holdfast_daemon.validation.rules import (
    RefusedError,
    check_count,
    check_known,
    check_length,
    check_text,
)
from holdfast_proto.limits import LARGEST_COUNT, MOST_GROUPS, MOST_RANKS, NAME_CHARACTERS
from holdfast_proto.v1.recorder_pb2 import CallState, RecordedCall, RecordedGroup, RecorderDump

_MOST_CALLS = 1024
_STATES = frozenset(CallState.values())


def check_recorder(dump: RecorderDump) -> None:
    """Check a dump. Raises RefusedError."""
    check_text(dump.version, "recorders.version", NAME_CHARACTERS)
    check_length(dump.groups, "recorders.groups", MOST_GROUPS)
    check_length(dump.calls, "recorders.calls", _MOST_CALLS)
    for group in dump.groups:
        _check_group(group)
    newest = -1
    for call in dump.calls:
        _check_call(call, len(dump.groups))
        if call.order < newest:
            raise RefusedError("the calls of a recorder are not in order")
        newest = call.order


def _check_group(group: RecordedGroup) -> None:
    check_text(group.name, "the name of a recorded group", NAME_CHARACTERS)
    check_text(group.description, "the description of a recorded group", NAME_CHARACTERS)
    # A dump is evidence from outside: ranks that the run does not have must not cost the stacks beside it.
    if len(set(group.members)) < len(group.members) or len(group.members) > MOST_RANKS:
        raise RefusedError(f"group {group.name[:80]!r} of a recorder names a member twice")
    for number in (group.last_enqueued, group.last_started, group.last_completed):
        if not -1 <= number <= LARGEST_COUNT:
            raise RefusedError(f"group {group.name[:80]!r} of a recorder has the number {number}")


def _check_call(call: RecordedCall, groups: int) -> None:
    if call.group >= groups:
        raise RefusedError("a recorded call has no group")
    for name in ("order", "seq", "p2p_seq", "timeout_ms"):
        check_count(getattr(call, name), f"{name} of a recorded call")
    check_known(call.state, _STATES, "the state of a recorded call")
    for name in ("op", "input_sizes", "output_sizes", "dtypes", "frame"):
        check_text(getattr(call, name), f"{name} of a recorded call", NAME_CHARACTERS * 16)
